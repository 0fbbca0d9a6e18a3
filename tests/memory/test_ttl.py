"""The end of a ttl, for every kind of holder."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from tests.memory._inside import tracker_of

from slotwise import MemorySemaphore, SemaphoreStats
from slotwise._wait.ttl_cancel import TtlCancels
from slotwise.testing import FakeClock, settle


async def test_a_slot_is_freed_exactly_at_the_end_of_its_ttl(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    await semaphore.acquire()
    clock.advance(9.999)
    assert await semaphore.locked()
    clock.advance(0.001)
    assert not await semaphore.locked()


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


def test_the_ttl_ends_after_the_loop_that_acquired_was_closed() -> None:
    semaphore = MemorySemaphore(value=1, ttl=0.05, cancel_task_after_ttl=True)
    asyncio.run(semaphore.acquire())
    semaphore.acquire_sync(timeout=60)  # served by the timer's thread, with no loop around


async def test_a_thread_that_died_holding_keeps_its_slot_until_the_ttl(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    thread = threading.Thread(target=semaphore.acquire_sync)
    thread.start()
    thread.join()
    assert await semaphore.locked()
    clock.advance(10)
    assert not await semaphore.locked()


# -------------------------------------------------------- cancel_task_after_ttl


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


async def test_a_dropped_semaphore_with_a_ttl_can_be_collected(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=3600)
    async with semaphore.cm():
        pass
    tracker = weakref.ref(tracker_of(semaphore))
    del semaphore
    gc.collect()
    assert tracker() is None
    clock.advance(3601)


# ----------------------------------------------------------------------- cancels


async def _works_forever() -> None:
    await asyncio.Event().wait()


async def test_only_the_owner_of_a_key_keeps_its_task() -> None:
    cancels = TtlCancels()
    task = asyncio.create_task(_works_forever())
    cancels.announce("a", task, "the ttl is over", owner=cancels).send()
    cancels.keep_task("a")
    cancels.keep_task("b", owner=cancels)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancel_that_never_arrives_leaves_nothing_behind() -> None:
    cancels = TtlCancels()
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    loop.run_until_complete(task)
    on_its_way = cancels.announce("a", task, "the ttl is over")
    on_its_way.send()
    too_late = cancels.announce("b", task, "the ttl is over")
    loop.close()
    too_late.send()
    assert len(cancels) == 2
    del on_its_way, too_late, loop, task
    gc.collect()
    assert not cancels
