"""What a twin for plain threads does beyond its coroutine: see `slotwise._core.twins`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import MemorySemaphore, Semaphore, Tier, Tiers
from slotwise._core.twins import is_blocking, run_here, twin


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
