"""What only this driver has, as seen from one process."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests._interrupting import Interrupted, interrupted_when
from tests._stdlib import discard

from slotwise import ProcessSemaphore, SemaphoreStats, ValueConflict
from slotwise.processes import _file_journal as journals
from slotwise.processes._limit import SharedLimit

Make = Callable[..., ProcessSemaphore]
Settle = Callable[[], Awaitable[None]]


# ----------------------------------------------------------- figures of names


def test_fencing_tokens_grow_and_are_close_to_the_time(make: Make) -> None:
    semaphore = make()
    tokens = []
    for _ in range(20):
        with semaphore.cm() as acquired:
            assert acquired.fencing_token is not None
            tokens.append(acquired.fencing_token)
    assert tokens == sorted(set(tokens))
    assert abs(tokens[0] / 1e6 - time.time()) < 60


def test_statistics_are_those_of_the_directory(make: Make, directory: Path) -> None:
    half, full, idle = make(2, name="half"), make(1, name="full"), make(1, name="idle")
    half.acquire_sync()
    full.acquire_sync()
    idle.release_sync(idle.acquire_sync())
    stats = ProcessSemaphore.get_acquired_stats_sync(directory=directory)
    assert [*stats.items()] == [("full", SemaphoreStats(1, 1)), ("half", SemaphoreStats(1, 2))]
    named = asyncio.run(
        ProcessSemaphore.get_acquired_stats(["idle", "nobody"], directory=directory)
    )
    assert named == {"idle": SemaphoreStats(0, 1)}
    assert [*ProcessSemaphore.get_acquired_stats_sync(limit=1, directory=directory)] == ["full"]
    with pytest.raises(TypeError, match="iterable of names"):
        ProcessSemaphore.get_acquired_stats_sync("idle", directory=directory)


# -------------------------------------------------------------- value, resize


def test_an_existing_semaphore_is_opened_without_knowing_its_value(
    make: Make, directory: Path
) -> None:
    make(3).acquire_sync()
    found = ProcessSemaphore.existing("s", directory=directory)
    assert (found.value, found.resized) == (3, False)
    assert found.acquire_sync().slot_number == 2


def test_whether_it_was_resized_can_be_seen(make: Make, directory: Path) -> None:
    held = make(3).acquire_sync()
    make(3).resize_sync(5)
    found = ProcessSemaphore.existing("s", directory=directory)
    assert (found.value, found.resized) == (5, True)
    with pytest.raises(ValueConflict, match="5 slots, not 4"):
        make(4).acquire_sync()
    make(3).resize_sync(3)
    assert ProcessSemaphore.existing("s", directory=directory).resized is False
    assert make(3).release_sync(held) is True


# -------------------------------------------- loops, threads, interruptions


async def test_a_grant_to_a_waiter_in_a_closed_loop_is_passed_on(make: Make) -> None:
    semaphore = make()
    held = await semaphore.acquire()
    loops: list[asyncio.AbstractEventLoop] = []

    def wait_and_close() -> None:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        task = loop.create_task(semaphore.acquire())
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        discard(task)
        loop.close()

    await asyncio.to_thread(wait_and_close)
    gc.collect()
    await semaphore.release(held)
    async with asyncio.timeout(30):
        await semaphore.acquire()


async def test_a_garbage_collected_block_releases_its_slot(
    make: Make, collect: Callable[[], None]
) -> None:
    semaphore = make()

    def work() -> object:
        with semaphore.cm():
            yield

    def start_in_a_thread() -> None:
        generator = work()
        next(generator)  # type: ignore[call-overload]

    await asyncio.to_thread(start_in_a_thread)
    collect()
    assert await semaphore.stats() == SemaphoreStats(0, 1)


def test_a_release_in_a_signal_handler_that_interrupts_a_change_is_done_after_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = make(2)
    held = semaphore.acquire_sync()
    answers = []

    def handler(*_: object) -> None:
        answers.append(semaphore.release_sync(held))
        with pytest.raises(RuntimeError, match="interrupted slotwise"):
            semaphore.try_acquire_sync()

    # In the middle of a change of this thread.
    usual = SharedLimit.write

    def interrupted(self: SharedLimit, *args: object) -> None:
        usual(self, *args)  # type: ignore[arg-type]
        if not answers:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(SharedLimit, "write", interrupted)
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        semaphore.acquire_sync()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert answers == [True]
    assert not held.lost.is_set()
    assert semaphore.stats_sync() == SemaphoreStats(1, 2)


def test_an_interrupted_wait_takes_nothing(make: Make) -> None:
    semaphore = make()
    held = semaphore.acquire_sync()

    with interrupted_when(semaphore.waiters_sync), pytest.raises(Interrupted):
        semaphore.acquire_sync()
    assert semaphore.stats_sync() == SemaphoreStats(1, 1)
    assert semaphore.release_sync(held) is True


# ------------------------------------------------------------------- head starts


async def test_a_process_that_reads_a_snapshot_knows_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_COMPACT_AFTER", 200)  # bytes: a snapshot at almost every step
    semaphore = ProcessSemaphore(1, name="s", directory=tmp_path)
    order: list[int] = []
    holder = await semaphore.acquire()

    async def ask(n: int, priority: float) -> None:
        acquired = await semaphore.acquire(priority=priority)
        order.append(n)
        await semaphore.release(acquired)

    tasks = []
    for n, priority in enumerate((0, -60, 60, 0, 30)):
        tasks.append(asyncio.create_task(ask(n, priority)))
        async with asyncio.timeout(30):
            while (await semaphore.stats()).waiting != n + 1:
                await asyncio.sleep(0.001)
    await semaphore.release(holder)
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert order == [2, 4, 0, 3, 1]
