"""How every driver is called: a positional value, `locked()`, the names of parameters."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import (
    Limit,
    MemorySemaphore,
    ProcessSemaphore,
    RateLimit,
    RedisSemaphore,
    Semaphore,
    SlotManager,
    Tier,
    Tiers,
)
from slotwise._core.twins import is_blocking, run_here, twin
from slotwise.tiers._path_limit import PathLimit

Make = Callable[..., Semaphore]

KINDS = (
    *(Limit, Semaphore, MemorySemaphore, ProcessSemaphore, RedisSemaphore),
    *(PathLimit, RateLimit, Tiers, SlotManager),
)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not SlotManager])
def test_hold_is_cm_by_another_name(kind: type) -> None:
    assert inspect.signature(kind.hold) == inspect.signature(kind.cm)  # type: ignore[attr-defined]


async def test_a_hold_holds_a_slot(make: Make) -> None:
    semaphore = make(1)
    async with semaphore.hold(label="here") as acquired:
        assert acquired.slot_number == 1
        assert await semaphore.locked()
    assert not await semaphore.locked()


def test_only_the_value_may_be_positional(driver: Callable[..., Semaphore]) -> None:
    with pytest.raises(TypeError, match="positional"):
        driver(1, "positional")
    with pytest.raises(TypeError, match="value"):
        driver(name="without-a-value")


def test_what_a_semaphore_was_made_with_can_be_read(make: Make, name: str) -> None:
    plain = make(3)
    assert (plain.name, plain.value) == (name, 3)
    assert (plain.max_acquire_time, plain.ttl, plain.cancel_task_after_ttl) == (None, None, False)
    given = {"max_acquire_time": 5.0, "ttl": 30.0, "cancel_task_after_ttl": True}
    semaphore = make(3, **given)
    assert {option: getattr(semaphore, option) for option in given} == given


@pytest.mark.parametrize(
    "made", [MemorySemaphore, ProcessSemaphore, RedisSemaphore, Tiers, RateLimit]
)
def test_every_constructor_argument_is_an_attribute(made: type) -> None:
    parameters = {*inspect.signature(made).parameters} - {"atomic"}  # which is always True
    assert [each for each in parameters if not isinstance(getattr(made, each), property)] == []


def test_all_drivers_have_the_same_methods_with_the_same_parameters() -> None:
    def methods_of(driver: type[Semaphore]) -> dict[str, list[object]]:
        return {
            name: [
                (each.name, each.kind, each.default)
                for each in inspect.signature(getattr(driver, name)).parameters.values()
            ]
            for name in dir(Semaphore)
            if not name.startswith("_") and callable(getattr(Semaphore, name))
        }

    of_memory = methods_of(MemorySemaphore)
    assert "try_acquire" in of_memory
    assert methods_of(ProcessSemaphore) == of_memory
    assert methods_of(RedisSemaphore) == of_memory


def test_what_only_one_driver_has_is_an_argument_of_its_own_or_about_its_place() -> None:
    def own(driver: type[Semaphore]) -> set[str]:
        arguments = inspect.signature(driver).parameters
        public = {name for name in dir(driver) if not name.startswith("_")}
        return public - {*dir(Semaphore), *arguments}

    statistics = {"get_acquired_stats", "get_acquired_stats_sync"}
    assert own(MemorySemaphore) == statistics
    assert own(ProcessSemaphore) == statistics | {"existing", "names", "resized"}
    assert own(RedisSemaphore) == statistics


def public_methods(kind: type) -> dict[str, Callable[..., object]]:
    named = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: method for name, method in named.items() if callable(method)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_coroutine_has_a_sync_twin_with_the_same_signature(kind: type) -> None:
    methods = public_methods(kind)
    for name, method in methods.items():
        if inspect.iscoroutinefunction(method):
            twin = inspect.signature(methods[f"{name}_sync"])
            assert twin.parameters == inspect.signature(method).parameters, name
        if name.endswith("_sync"):
            assert name.removesuffix("_sync") in methods


@pytest.mark.parametrize("kind", KINDS)
def test_everything_public_is_documented(kind: type) -> None:
    assert [name for name, it in public_methods(kind).items() if not inspect.getdoc(it)] == []
    found = vars(kind).items()
    properties = {name: it for name, it in found if isinstance(it, property)}
    public = [name for name in properties if not name.startswith("_")]
    assert [name for name in public if not properties[name].__doc__] == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_entered_with_async_with_can_be_entered_with_with(kind: type) -> None:
    for name in ("enter", "exit"):
        assert hasattr(kind, f"__a{name}__") == hasattr(kind, f"__{name}__")


# ---------------------------------------------------------------- locked()


async def test_locked_without_await_never_misleads(make: Make) -> None:
    semaphore = make(1)
    held = await semaphore.acquire()
    if isinstance(semaphore, MemorySemaphore):
        assert semaphore.locked()
        answer = semaphore.locked()
        await semaphore.release(held)
        assert not semaphore.locked()
        assert answer, "it says how it was when it was asked"
        assert await answer is True
        assert "True" in repr(answer)
    else:
        with pytest.raises(TypeError, match=r"await semaphore\.locked\(\).*locked_sync\(\)"):
            bool(semaphore.locked())
        with pytest.raises(TypeError, match="await"):
            assert not semaphore.locked()
        await semaphore.release(held)
    gc.collect()  # no coroutine is left that was never awaited: that would be an error here


async def test_a_forgotten_await_of_locked_is_warned_about(
    make: Make, recwarn: pytest.WarningsRecorder
) -> None:
    semaphore = make(1)
    semaphore.locked()
    gc.collect()
    warned = [str(warning.message) for warning in recwarn.list]
    if isinstance(semaphore, MemorySemaphore):
        assert not warned, "there it may be used without"
    else:
        assert len(warned) == 1
        assert "was never awaited" in warned[0]


async def test_an_answer_that_was_thrown_into_or_closed_asks_nothing(make: Make) -> None:
    semaphore = make(1)
    closed = semaphore.locked()
    closed.close()
    thrown = semaphore.locked()
    with pytest.raises(LookupError):
        thrown.throw(LookupError())
    assert await asyncio.create_task(semaphore.locked()) is False


# ------------------------------------------------------------- parameter names


@pytest.mark.parametrize("driver_class", [MemorySemaphore, ProcessSemaphore, RedisSemaphore, Tiers])
@pytest.mark.parametrize("verb", ["release", "release_sync", "kick", "kick_sync"])
def test_what_ends_an_acquisition_takes_an_acquisition_id(driver_class: type, verb: str) -> None:
    method = getattr(driver_class, verb)
    more = ["outcome"] if verb.startswith("release") else []
    assert [*inspect.signature(method).parameters] == ["self", "acquisition_id", *more]


# ------------------------------------------------------------------------- twins


class Limited:
    """Something with a coroutine and its twin."""

    async def work(self, number: int, *, more: int = 0) -> tuple[int, bool]:
        """Work."""
        return number + more, is_blocking()

    work_sync = twin(work)

    def _run(self, start: Callable[..., Any], *, completes: bool = False) -> Any:
        return run_here(start, completes=completes)


def test_a_twin_has_a_name_a_docstring_and_the_parameters_of_its_coroutine() -> None:
    assert Limited().work_sync(1, more=2) == (3, True)
    assert Limited.work_sync.__qualname__ == "Limited.work_sync"
    assert Limited.work_sync.__doc__ == "Like `work`, for plain threads."
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        Limited().work_sync(1, other=2)  # type: ignore[call-arg]


def test_a_subclass_that_overrides_a_coroutine_overrides_its_twin() -> None:
    class Counted(MemorySemaphore):
        asked = 0

        async def acquire(self, *args: Any, **options: Any) -> Any:
            self.asked += 1
            return await super().acquire(*args, **options)

    semaphore = Counted(1)
    semaphore.release_sync(semaphore.acquire_sync())
    assert semaphore.asked == 1


async def test_what_fails_in_a_twin_leaves_nothing_behind_in_its_thread(
    make: Callable[..., Semaphore],
) -> None:
    semaphore = make(1)
    with pytest.raises(TypeError):
        semaphore.release_sync(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slots"):
        semaphore.try_acquire_sync(0)
    assert not is_blocking()


def test_coroutines_in_a_loop_that_a_function_of_the_users_runs_meanwhile_suspend() -> None:
    """A blocking call asks for the value of a key; that function uses asyncio, and waits in it."""
    other = MemorySemaphore(1)

    async def waits_for_a_slot() -> int:
        held = await other.acquire()
        asyncio.get_running_loop().call_later(0.01, other.release_sync, held)
        async with other.cm():
            return 2

    tiers = Tiers(Tier("tenant", lambda _: asyncio.run(waits_for_a_slot()), keyed=True))
    with tiers.cm(tenant="acme"):
        assert tiers.stats_sync()["tenant"].keys["acme"].value == 2
