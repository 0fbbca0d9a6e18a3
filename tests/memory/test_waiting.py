"""Waits that end in every other way than by a grant, and grants that cannot be delivered."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests._effort import MANY
from tests._stdlib import discard, leave
from tests.memory._inside import check, ledger_of

from slotwise import AcquireTimeout, MemorySemaphore, SemaphoreStats
from slotwise._wait import deliveries
from slotwise.testing import FakeClock, settle


async def block(semaphore: MemorySemaphore) -> None:
    async with semaphore:
        pass


async def cm(semaphore: MemorySemaphore) -> None:
    async with semaphore.cm():
        pass


async def wide(semaphore: MemorySemaphore) -> None:
    async with semaphore.cm(semaphore.value):
        pass


async def timed(semaphore: MemorySemaphore) -> None:
    async with semaphore.cm(timeout=1000):
        pass


WAYS = [block, cm, wide, timed]
Way = Callable[[MemorySemaphore], "asyncio._CoroutineLike[None]"]


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_in_the_tick_of_the_grant_hands_it_on(way: Way) -> None:
    semaphore = MemorySemaphore(value=1)
    first = await semaphore.acquire()
    cancelled = asyncio.create_task(way(semaphore))
    await settle()
    patient = asyncio.create_task(way(semaphore))
    await settle()
    await semaphore.release(first)  # granted, not yet delivered
    cancelled.cancel()
    await settle()
    assert cancelled.cancelled()
    assert patient.done()
    check(semaphore)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", range(6))
async def test_cancelled_at_every_await_point(way: Way, step: int) -> None:
    semaphore = MemorySemaphore(value=1)

    async def hold_a_while() -> None:
        async with semaphore:
            for _ in range(3):
                await asyncio.sleep(0)

    holding = asyncio.create_task(hold_a_while())
    await asyncio.sleep(0)
    task = asyncio.create_task(way(semaphore))
    for _ in range(step):
        await asyncio.sleep(0)
    task.cancel()
    await settle()
    assert task.done()
    assert holding.done()
    check(semaphore)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_grant_to_a_waiter_of_a_closed_loop_goes_to_the_next(way: Way) -> None:
    semaphore = MemorySemaphore(value=1)
    held = semaphore.acquire_sync()
    loop = asyncio.new_event_loop()
    task = loop.create_task(way(semaphore))
    loop.run_until_complete(settle())
    loop.close()
    granted = threading.Event()

    def wait() -> None:
        with semaphore.cm():
            granted.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while semaphore.stats_sync().waiting < 2:
        pass
    semaphore.release_sync(held)
    thread.join(60)
    assert granted.is_set()
    assert semaphore.stats_sync() == SemaphoreStats(0, 1)
    discard(task)


@pytest.fixture
def collected_in_order() -> Iterator[None]:
    """Have tasks collected before the coroutines that they run.

    If an automatic collection comes between the two, the inner one is collected first, and
    Python complains about the outer one that it is executing already.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_in_order")
@pytest.mark.parametrize("way", WAYS)
def test_a_grant_under_way_when_its_loop_is_closed_is_handed_on(way: Way) -> None:
    semaphore = MemorySemaphore(value=1)
    held = semaphore.acquire_sync()
    loop = asyncio.new_event_loop()
    task = loop.create_task(way(semaphore))
    loop.run_until_complete(settle())
    semaphore.release_sync(held)  # posted to the loop, which never runs again
    loop.close()
    discard(task)
    del task, loop
    gc.collect()
    assert semaphore.try_acquire_sync() is not None


@pytest.mark.soak
async def test_a_collection_in_the_middle_of_anything_does_not_deadlock() -> None:
    """A waiter that is collected cleans up wherever the collector happens to run."""
    semaphore = MemorySemaphore(value=1)
    held = await semaphore.acquire()
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for way in WAYS * 5:
            coroutine = way(semaphore)
            coroutine.send(None)  # it waits
            cycle: list[object] = [coroutine]
            cycle.append(cycle)
            del coroutine, cycle
            waiting = asyncio.create_task(semaphore.acquire())
            await asyncio.sleep(0)
            waiting.cancel()
            await settle()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    await semaphore.release(held)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


@pytest.mark.soak
@pytest.mark.parametrize("count", MANY)
async def test_very_many_waiters_of_which_every_second_is_cancelled(count: int) -> None:
    semaphore = MemorySemaphore(value=1)
    order: list[int] = []

    async def wait(number: int) -> None:
        async with semaphore:
            order.append(number)

    async with semaphore:
        tasks = [asyncio.create_task(wait(number)) for number in range(count)]
        await settle()
        assert (await semaphore.stats()).waiting == count
        for task in tasks[::2]:
            task.cancel()
        await settle()
        assert (await semaphore.stats()).waiting == count // 2
        # What has ended does not stay in the line for long.
        assert len(ledger_of(semaphore).line) < 1.1 * count
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [*range(1, count, 2)]
    check(semaphore)


async def test_waiters_that_come_and_go_do_not_pile_up_behind_a_stuck_holder() -> None:
    semaphore = MemorySemaphore(value=1)
    async with semaphore:
        for _ in range(2_000):
            task = asyncio.create_task(block(semaphore))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
        await settle()
        assert len(ledger_of(semaphore).line) < 100


async def test_time_outs_are_driven_by_the_clock(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(name="timed", value=1, max_acquire_time=5)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(block(semaphore))
    longer = asyncio.create_task(semaphore.acquire(timeout=6))
    await settle()
    clock.advance(4.9)
    await settle()
    assert not waiting.done()
    clock.advance(0.1)
    with pytest.raises(
        AcquireTimeout, match=r"no slot of 'timed' within 5 s: 1 of 1 held.*, 1 other waiting"
    ):
        await waiting
    clock.advance(1)
    with pytest.raises(AcquireTimeout):
        await longer
    await semaphore.release(held)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


async def test_a_time_out_and_a_cancel_in_one_tick_leave_nothing(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, max_acquire_time=5)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await settle()
    clock.advance(5)
    waiting.cancel()
    await settle()
    assert waiting.cancelled()
    await semaphore.release(held)
    check(semaphore)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


async def test_blocks_of_two_loops_and_threads_stand_in_one_queue() -> None:
    semaphore = MemorySemaphore(value=1)
    order: list[str] = []
    held = await semaphore.acquire()

    async def here(name: str) -> None:
        async with semaphore:
            order.append(name)

    def elsewhere(name: str) -> None:
        asyncio.run(here(name))

    def thread(name: str) -> None:
        with semaphore:
            order.append(name)

    async def queue(count: int) -> None:
        async with asyncio.timeout(60):
            while (await semaphore.stats()).waiting < count:
                await asyncio.sleep(0)

    waiting: list[asyncio.Future[None] | asyncio.Task[None]] = []
    for count, name in enumerate(["home 1", "loop", "home 2", "thread", "loop", "home 3"], 1):
        if name.startswith("home"):
            waiting.append(asyncio.create_task(here(name)))
        else:
            target = elsewhere if name == "loop" else thread
            waiting.append(asyncio.ensure_future(asyncio.to_thread(target, name)))
        await queue(count)
    await semaphore.release(held)
    await asyncio.gather(*waiting)
    assert order == ["home 1", "loop", "home 2", "thread", "loop", "home 3"]
    check(semaphore)


async def test_closing_reaches_those_in_the_line_from_another_thread() -> None:
    semaphore = MemorySemaphore(name="closing-line", value=1)
    async with semaphore:
        waiting = [asyncio.create_task(block(semaphore)) for _ in range(3)]
        await settle()
        await asyncio.to_thread(semaphore.close_sync)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == ["SemaphoreClosed"] * 3
    assert not await MemorySemaphore(name="closing-line", value=1).locked()


async def _crowd(semaphore: MemorySemaphore) -> int:
    """Have twenty tasks wait for each other; return how many passed."""
    passed = 0

    async def member() -> None:
        nonlocal passed
        async with semaphore:
            await asyncio.sleep(0)
            passed += 1

    await asyncio.wait_for(asyncio.gather(*[member() for _ in range(20)]), 30)
    return passed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # there are other threads
async def test_a_child_that_is_forked_inside_a_loop_has_loops_of_its_own() -> None:
    semaphore = MemorySemaphore(2)
    assert await _crowd(semaphore) == 20
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if asyncio.run(_crowd(semaphore)) == 20 else 2
        finally:
            leave(code)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # there are other threads
def test_a_child_that_is_forked_while_a_thread_wakes_others_wakes_its_own_waiters() -> None:
    """Its threads get the idents of those that were in the middle of something in the parent."""
    is_inside, may_go = threading.Event(), threading.Event()

    def wake() -> None:
        deliveries.post(lambda: is_inside.set() or may_go.wait(60))
        deliveries.deliver_posted()

    threads = [threading.Thread(target=wake) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert is_inside.wait(60)
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(30)  # a child that hangs is one that fails
        try:
            semaphore = MemorySemaphore(1, ttl=0.05)
            semaphore.acquire_sync()
            semaphore.acquire_sync(timeout=10)  # when the ttl of the first ends
            code = 0
        finally:
            leave(code)
    may_go.set()
    for thread in threads:
        thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class _Strange(asyncio.SelectorEventLoop):
    """One that makes futures of its own."""

    made = 0

    def create_future(self) -> asyncio.Future[Any]:
        self.made += 1
        return super().create_future()


def test_loops_that_make_futures_of_their_own_are_asked_for_them() -> None:
    semaphore = MemorySemaphore(1)
    for _ in range(2):  # the line moves to the second one
        loop = _Strange()
        try:
            before = loop.made
            assert loop.run_until_complete(_crowd(semaphore)) == 20
            assert loop.made - before >= 19
        finally:
            loop.close()
    assert asyncio.run(_crowd(semaphore)) == 20
