"""Copies and pickles of semaphores, tiers, slot managers and results."""

from __future__ import annotations

import base64
import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from slotwise import (
    AcquisitionResult,
    MemorySemaphore,
    ProcessSemaphore,
    Rate,
    RateLimit,
    RedisConfig,
    RedisSemaphore,
    Semaphore,
    SlotManager,
    Tier,
    Tiers,
)
from slotwise.effects import CreateSemaphore, Program, do, run
from tests import _fresh_processes
from tests.contract.conftest import Url

Make = Callable[..., Semaphore]


def unpickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


COPIES = [copy.copy, copy.deepcopy, unpickled]


@pytest.mark.parametrize("copied", COPIES)
async def test_a_copy_of_a_named_semaphore_is_the_same_semaphore(
    make: Make, copied: Callable[[Any], Any]
) -> None:
    semaphore = make(1, ttl=60, max_acquire_time=7, cancel_task_after_ttl=True)
    twin = copied(semaphore)
    assert type(twin) is type(semaphore)
    assert (twin.name, twin.value) == (semaphore.name, 1)
    assert repr(twin) == repr(semaphore)
    held = await semaphore.acquire()
    assert await twin.try_acquire() is None
    assert await twin.release(held) is True
    async with twin:
        assert await semaphore.locked()


async def test_a_private_semaphore_is_its_own_copy_and_is_not_pickled(make: Make) -> None:
    semaphore = make(1, name=None)
    assert copy.copy(semaphore) is semaphore
    assert copy.deepcopy({"limit": [semaphore]})["limit"][0] is semaphore
    with pytest.raises(TypeError, match=r"Semaphore is private and can't be pickled: .* name"):
        pickle.dumps(semaphore)


async def test_results_are_pickled_as_plain_results(make: Make) -> None:
    semaphore = make(3, ttl=60)
    for acquired in (await semaphore.acquire(), await semaphore.acquire(2)):
        acquired.lost.is_set()  # which makes what can't be pickled
        twin = unpickled(acquired)
        assert type(twin) is AcquisitionResult
        assert (twin, hash(twin)) == (acquired, hash(acquired))
        assert twin.fencing_token == acquired.fencing_token
        assert copy.deepcopy([acquired])[0] is copy.copy(acquired) is acquired
        assert await semaphore.release(unpickled(acquired)) is True


def in_another_process(thing: Any, program: str) -> str:
    loads = "thing = pickle.loads(base64.b64decode(sys.argv[1]))"
    code = f"import base64, pickle, sys\n{loads}\n{program}"
    pickled = base64.b64encode(pickle.dumps(thing)).decode()
    done = _fresh_processes.run(
        [sys.executable, "-c", code, pickled],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(params=["processes", "redis"])
def shared(request: pytest.FixtureRequest, name: str) -> Semaphore:
    if request.param == "processes":
        folder = request.getfixturevalue("tmp_path") / "slots"
        return ProcessSemaphore(1, name=name, directory=folder)
    server = request.getfixturevalue("server")
    return RedisSemaphore(1, name=name, config=RedisConfig(server.url, namespace="copies"))


async def test_a_pickled_semaphore_is_the_same_one_in_another_process(shared: Semaphore) -> None:
    asks = "got = thing.try_acquire_sync(); print(got is not None); got and thing.release_sync(got)"
    if isinstance(shared, RedisSemaphore):  # which may be slow to answer on a busy machine
        asks = f"from slotwise.redis import _backend; _backend.TRY_LIMIT = 60\n{asks}"
    assert in_another_process(shared, asks) == "True"
    async with shared:
        assert in_another_process(shared, asks) == "False"


def test_an_existing_process_semaphore_is_copied_whatever_its_value(tmp_path: Any) -> None:
    ProcessSemaphore(3, name="x", directory=tmp_path).resize_sync(4)
    found = ProcessSemaphore.existing("x", directory=tmp_path)
    for copied in COPIES:
        assert copied(found).stats_sync().max_slots == 4


# ---------------------------------------------------------- tiers, slot managers


@pytest.mark.parametrize("copied", COPIES)
async def test_a_copy_of_named_tiers_shares_their_slots(
    name: str, url: Url, copied: Callable[[Any], Any]
) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name=name, url=url)
    twin = copied(tiers)
    async with tiers.cm(tenant="acme"):
        with pytest.raises(TimeoutError):
            await twin.acquire(tenant="acme", timeout=0)
        await twin.release(await twin.acquire(tenant="other", timeout=0))
    taken = await twin.acquire(tenant="acme", timeout=0)
    assert type(unpickled(taken)) is AcquisitionResult
    await twin.release(taken)


@pytest.mark.parametrize("kind", [lambda: Tiers(Tier("all", 1)), SlotManager])
def test_private_tiers_and_managers_are_their_own_copies(kind: Callable[[], Any]) -> None:
    private = kind()
    assert copy.copy(private) is private
    assert copy.deepcopy([private])[0] is private
    with pytest.raises(TypeError, match="is private and can't be pickled"):
        pickle.dumps(private)
    private.close_sync()


# --------------------------------------------------------------------- effects


def test_a_handle_of_the_effects_is_its_own_copy_and_is_not_pickled() -> None:
    @do
    def program() -> Program[None]:
        semaphore = yield CreateSemaphore(1)
        assert copy.copy(semaphore) is semaphore
        assert copy.deepcopy([semaphore])[0] is semaphore
        with pytest.raises(TypeError, match="is private and can't be pickled"):
            pickle.dumps(semaphore)

    run(program())


# ------------------------------------------------------------------ subclasses


class _Limits:
    """What the subclasses of this module are made with, beside their tenant."""

    options: ClassVar[dict[str, Any]] = {}
    name = ""


class MemoryOfTenant(MemorySemaphore):
    __slots__ = ("__dict__", "tenant")

    def __init__(self, tenant: str) -> None:
        self.regions = ["eu"]
        super().__init__(1, name=f"{_Limits.name}:{tenant}")
        self.tenant = tenant


class ProcessOfTenant(ProcessSemaphore):
    def __init__(self, tenant: str) -> None:
        self.regions = ["eu"]
        super().__init__(1, name=f"{_Limits.name}:{tenant}", **_Limits.options)
        self.tenant = tenant


class TiersOfTenant(Tiers):
    def __init__(self, tenant: str) -> None:
        self.regions = ["eu"]
        super().__init__(Tier("all", 1), name=f"{_Limits.name}:{tenant}", **_Limits.options)
        self.tenant = tenant


SUBCLASSES = [
    (MemoryOfTenant, "memory"),
    (ProcessOfTenant, "processes"),
    (TiersOfTenant, "tiers"),
    (TiersOfTenant, "redis tiers"),
]


@pytest.mark.parametrize(("kind", "where"), SUBCLASSES)
def test_a_subclass_with_another_init_is_copied_with_what_it_adds(
    kind: Callable[[str], Any], where: str, name: str, request: pytest.FixtureRequest
) -> None:
    _Limits.name, _Limits.options = name, {}
    if where == "processes":
        _Limits.options = {"directory": request.getfixturevalue("tmp_path") / "slots"}
    elif where == "redis tiers":
        _Limits.options = {"url": RedisConfig(request.getfixturevalue("server").url)}
    limit = kind("acme")
    for copied in COPIES:
        twin = copied(limit)
        assert type(twin) is kind
        assert (twin.tenant, twin.regions) == ("acme", ["eu"])
        assert (twin is limit) is (copied is not unpickled)
        held = limit.try_acquire_sync()
        assert held is not None
        assert twin.try_acquire_sync() is None
        assert limit.release_sync(held) is True
    limit.close_sync()


@pytest.mark.parametrize("copied", COPIES)
async def test_a_copy_of_a_named_rate_takes_of_the_same_rate(
    name: str, url: Url, copied: Callable[[Any], Any]
) -> None:
    rate = RateLimit(name, Rate(1, per=3600), url=url, max_waiting=3)
    twin = copied(rate)
    assert (type(twin), twin.max_waiting) == (RateLimit, 3)
    await rate.acquire()
    assert await twin.try_acquire() is None


@pytest.mark.parametrize("copied", COPIES)
async def test_a_copy_of_a_named_slot_manager_shares_its_slots(
    name: str, url: Url, copied: Callable[[Any], Any]
) -> None:
    manager = SlotManager(max_downloads=1, name=name, url=url)
    async with manager, copied(manager) as twin:
        assert twin.options == manager.options
        async with manager.download():
            with pytest.raises(TimeoutError):
                await twin.acquire_download_slot(timeout=0)
