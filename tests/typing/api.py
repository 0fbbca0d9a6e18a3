"""Each documented call, as the type checker sees it; nothing here runs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, assert_type

from slotwise import (
    AcquireTimeout,
    AcquisitionResult,
    MemorySemaphore,
    Semaphore,
    SemaphoreClosed,
    SemaphoreStats,
    SlotwiseError,
    ValueConflict,
)
from slotwise.effects import (
    AcquireSemaphore,
    CreateSemaphore,
    Exploration,
    Gather,
    Program,
    ReleaseSemaphore,
    Spawn,
    Task,
    Wait,
    do,
    explore,
    replay,
    run,
    run_async,
)
from slotwise.effects import Semaphore as Permits
from slotwise.testing import FakeClock, settle


async def tasks(semaphore: Semaphore) -> None:
    acquired = await semaphore.acquire()
    assert_type(acquired, AcquisitionResult)
    assert_type(acquired.acquisition_id, str)
    assert_type(acquired.slot_number, int)
    assert_type(await semaphore.acquire(2, timeout=None), AcquisitionResult)
    assert_type(await semaphore.acquire(timeout=1.5), AcquisitionResult)
    assert_type(await semaphore.try_acquire(slots=2), AcquisitionResult | None)
    assert_type(await semaphore.release(acquired), bool)
    assert_type(await semaphore.release(acquired.acquisition_id), bool)
    assert_type(await semaphore.locked(), bool)
    assert_type(await semaphore.stats(), SemaphoreStats)
    await semaphore.resize(3)
    await semaphore.close()
    async with semaphore.cm() as one:
        assert_type(one.slot_number, int)
    async with semaphore.cm(2, timeout=0) as two:
        assert_type(two.slot_number, int)
    async with semaphore as nothing:
        assert_type(nothing, None)
    await acquired.lost


def threads(semaphore: Semaphore) -> None:
    acquired = semaphore.acquire_sync(1, timeout=2)
    assert_type(acquired, AcquisitionResult)
    assert_type(semaphore.try_acquire_sync(), AcquisitionResult | None)
    assert_type(semaphore.release_sync(acquired), bool)
    assert_type(semaphore.locked_sync(), bool)
    assert_type(semaphore.stats_sync(), SemaphoreStats)
    semaphore.resize_sync(3)
    semaphore.close_sync()
    with semaphore.cm() as one:
        assert_type(one.slot_number, int)
    with semaphore as nothing:
        assert_type(nothing, None)
    assert_type(acquired.lost.wait(1.0), bool)
    assert_type(acquired.lost.is_set(), bool)


async def memory() -> None:
    semaphore = MemorySemaphore(
        value=5, name="api", max_acquire_time=5, ttl=30.0, cancel_task_after_ttl=True
    )
    await tasks(semaphore)
    threads(semaphore)
    assert_type(semaphore.value, int)
    assert_type(semaphore.name, str | None)
    stats = await MemorySemaphore.get_acquired_stats(names=["api"], limit=10)
    assert_type(stats, dict[str, SemaphoreStats])
    assert_type(stats["api"].acquired_percent, float)
    assert_type(MemorySemaphore.get_acquired_stats_sync(), dict[str, SemaphoreStats])


def errors() -> None:
    both: list[tuple[type[SlotwiseError], type[Exception]]] = [
        (AcquireTimeout, TimeoutError),
        (SemaphoreClosed, RuntimeError),
        (ValueConflict, ValueError),
    ]
    for ours, builtin in both:
        assert issubclass(ours, builtin)


async def testing() -> None:
    with FakeClock() as clock:
        clock.advance(61)
    await settle()


@do
def held(semaphore: Permits, number: int) -> Generator[Any, Any, int]:
    yield AcquireSemaphore(semaphore)
    yield ReleaseSemaphore(semaphore, 1)
    return number


@do
def gathered() -> Generator[Any, Any, list[int]]:
    semaphore: Permits = yield CreateSemaphore(2, "pool", owned=True)
    task: Task[int] = yield Spawn(held(semaphore, 1), name="one")
    result: list[int] = yield Gather(task, Wait(task), held(semaphore, 3))
    return result


async def effects() -> None:
    assert_type(gathered(), Program[list[int]])
    assert_type(run(gathered(), seed=1), list[int])
    assert_type(await run_async(gathered()), list[int])
    assert_type(explore(gathered, preemptions=2), Exploration)
    assert_type(replay(gathered, (1, 2)), list[int])
