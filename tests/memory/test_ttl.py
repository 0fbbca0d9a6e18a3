"""The end of a ttl, for every kind of holder."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref

import pytest
from tests.memory._inside import tracker_of

from slotwise import MemorySemaphore, SemaphoreStats
from slotwise._ledger import paths
from slotwise._ledger.deadlines import Deadlines
from slotwise.testing import FakeClock, settle


async def test_a_slot_is_freed_exactly_at_the_end_of_its_ttl(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    await semaphore.acquire()
    clock.advance(9.999)
    assert await semaphore.locked()
    clock.advance(0.001)
    assert not await semaphore.locked()


async def test_the_waiter_gets_it_at_once(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    await semaphore.acquire()
    waiting = [asyncio.create_task(semaphore.acquire()) for _ in range(2)]
    await settle()
    clock.advance(10)
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    clock.advance(10)  # the ttl of the second began with its grant
    await settle()
    assert waiting[1].done()


async def test_a_warning_names_semaphore_id_and_time(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore = MemorySemaphore(name="expiring", value=1, ttl=10)
    acquired = await semaphore.acquire()
    clock.advance(11)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "'expiring'" in record.message
    assert acquired.acquisition_id in record.message
    assert vars(record)["held_time"] == pytest.approx(10)
    assert vars(record)["semaphore_name"] == "expiring"


async def test_the_ttls_of_instances_of_one_name_may_differ(clock: FakeClock) -> None:
    short = MemorySemaphore(name="two-ttls", value=3, ttl=1)
    long = MemorySemaphore(name="two-ttls", value=3, ttl=100)
    forever = MemorySemaphore(name="two-ttls", value=3)
    await long.acquire()
    await short.acquire()
    held = await forever.acquire()
    clock.advance(1)
    assert await forever.stats() == SemaphoreStats(2, 3)
    clock.advance(99)
    assert await forever.stats() == SemaphoreStats(1, 3)
    await forever.release(held)


async def test_a_released_acquisition_does_not_expire_later(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    for _ in range(3):
        async with semaphore.cm():
            clock.advance(1)
        async with semaphore:
            clock.advance(1)
    await semaphore.release(await semaphore.acquire())
    wide = MemorySemaphore(value=4, ttl=10)
    async with wide.cm(3):
        pass
    clock.advance(100)
    assert not caplog.records


async def test_a_block_that_outlives_its_ttl_frees_nobody_elses_slot(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    async with semaphore:
        clock.advance(10)
        successor = await semaphore.acquire()
    assert await semaphore.locked()
    assert await semaphore.release(successor)


async def test_several_slots_expire_together(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=3, ttl=10)
    await semaphore.acquire(2)
    clock.advance(10)
    assert await semaphore.stats() == SemaphoreStats(0, 3)


async def test_a_plain_thread_loses_its_slot_too(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10, cancel_task_after_ttl=True)
    await asyncio.to_thread(semaphore.acquire_sync)
    clock.advance(10)
    assert not await semaphore.locked()


def test_the_ttl_ends_after_the_loop_that_acquired_was_closed() -> None:
    semaphore = MemorySemaphore(value=1, ttl=0.05, cancel_task_after_ttl=True)
    asyncio.run(semaphore.acquire())
    semaphore.acquire_sync(timeout=60)  # served by the timer's thread, with no loop around


def test_a_waiting_thread_is_served_when_a_ttl_ends() -> None:
    semaphore = MemorySemaphore(value=1, ttl=0.05)
    semaphore.acquire_sync()
    with semaphore.cm(timeout=60):
        pass


async def test_a_thread_that_died_holding_keeps_its_slot_until_the_ttl(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    thread = threading.Thread(target=semaphore.acquire_sync)
    thread.start()
    thread.join()
    assert await semaphore.locked()
    clock.advance(10)
    assert not await semaphore.locked()


# -------------------------------------------------------- cancel_task_after_ttl


async def test_exactly_the_task_that_acquired_is_cancelled(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=2, ttl=10, cancel_task_after_ttl=True)

    async def hold() -> None:
        async with semaphore.cm():
            await asyncio.Event().wait()

    async def look_on() -> str:
        await asyncio.Event().wait()
        return "never"

    holding, looking = asyncio.create_task(hold()), asyncio.create_task(look_on())
    await settle()
    clock.advance(10)
    await settle()
    assert holding.cancelled()
    assert not looking.done()
    looking.cancel()


async def test_a_waiter_is_cancelled_when_its_own_ttl_ends(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10, cancel_task_after_ttl=True)

    async def hold() -> None:
        async with semaphore:
            await asyncio.Event().wait()

    first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
    await settle()
    clock.advance(10)
    await settle()
    assert first.cancelled()
    assert not second.done()
    clock.advance(10)
    await settle()
    assert second.cancelled()


@pytest.mark.parametrize("how", ["leave", "by result", "by id", "release in a thread"])
async def test_the_cancel_is_dropped_for_a_holder_that_has_left_meanwhile(
    clock: FakeClock, how: str
) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10, cancel_task_after_ttl=True)
    if how == "leave":
        async with semaphore.cm():
            clock.advance(10)  # the cancel is on its way through the loop
    else:
        acquired = await semaphore.acquire()
        clock.advance(10)
        if how == "by result":
            assert await semaphore.release(acquired) is False
        elif how == "by id":
            assert await semaphore.release(acquired.acquisition_id) is False
        else:
            thread = threading.Thread(target=semaphore.release_sync, args=[acquired])
            thread.start()
            thread.join()
    await settle()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_cancel_happens_in_the_loop_of_the_task() -> None:
    semaphore = MemorySemaphore(
        name="other-loop-cancel", value=1, ttl=0.05, cancel_task_after_ttl=True
    )
    threads: list[threading.Thread] = []

    async def hold() -> None:
        async with semaphore.cm():
            try:
                await asyncio.Event().wait()
            finally:
                threads.append(threading.current_thread())

    def other_loop() -> None:
        with pytest.raises(asyncio.CancelledError, match="ttl"):
            asyncio.run(hold())

    thread = threading.Thread(target=other_loop)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert threads == [thread]


async def test_without_the_option_nobody_is_cancelled(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    async with semaphore.cm() as acquired:
        clock.advance(10)
        await settle()
        assert acquired.lost.is_set()


async def test_a_dropped_semaphore_with_a_ttl_can_be_collected(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=3600)
    async with semaphore.cm():
        pass
    tracker = weakref.ref(tracker_of(semaphore))
    del semaphore
    gc.collect()
    assert tracker() is None
    clock.advance(3601)


def test_threads_that_are_the_first_to_give_a_name_a_ttl_share_its_deadlines(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = MemorySemaphore(2, name="shared deadlines")  # so that there is a tracker
    held = []

    def acquire() -> None:
        held.append(MemorySemaphore(2, name="shared deadlines", ttl=10).acquire_sync())

    other = threading.Thread(target=acquire)

    class SlowDeadlines(Deadlines):
        def __init__(self) -> None:
            super().__init__()
            if other.ident is None:
                other.start()
                other.join(0.1)  # it must not get in between

    monkeypatch.setattr(paths, "Deadlines", SlowDeadlines)
    acquire()
    other.join()
    assert len(held) == 2
    clock.advance(10)
    assert plain.stats_sync().acquired_slots == 0
