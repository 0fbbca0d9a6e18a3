"""Who waits for time in an event loop is woken by its timer, and whoever else by a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.memory._inside import loop_alarm_of, tracker_of

from slotwise import Rate, RateLimit, Tier, Tiers

pytestmark = pytest.mark.soak

# At the last look, 10 ms of it are left: nothing is lost if a loop is late by a few.
ROOMY = Rate(100, per=1, burst=10)


NEVER = float("inf")


async def test_tasks_of_one_loop_are_woken_in_order_without_the_thread():
    limit, order = RateLimit(None, ROOMY), []

    async def ask(n: int) -> None:
        await limit.acquire()
        order.append(n)

    await limit.acquire(10)
    tracker = tracker_of(limit)
    tasks = [asyncio.create_task(ask(n)) for n in range(5)]
    await asyncio.sleep(0)
    assert loop_alarm_of(limit) < tracker.alarm == NEVER
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert tracker.alarm == NEVER


async def test_a_rate_without_room_to_be_late_is_left_to_the_thread():
    limit = RateLimit(None, Rate(1000, per=1, burst=1))
    await limit.acquire()
    async with asyncio.timeout(30):
        for _ in range(5):
            await limit.acquire()
    assert loop_alarm_of(limit) == NEVER


async def test_a_thread_does_not_wait_for_a_loop_that_is_busy():
    limit = RateLimit(None, ROOMY)
    await limit.acquire(10)
    task = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)  # it waits, by the timer of this loop
    entered = threading.Event()

    def wait_too() -> None:
        limit.acquire_sync(timeout=30)
        entered.set()

    thread = threading.Thread(target=wait_too)
    thread.start()
    # This loop is blocked: its timer can't ring, and the task before the thread can't run.
    assert entered.wait(30)
    thread.join(30)
    async with asyncio.timeout(30):
        await task


def test_a_loop_that_was_closed_leaves_nobody_waiting():
    limit = RateLimit(None, Rate(10, per=1, burst=2))
    limit.acquire_sync(2)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(limit.acquire(2))
        await asyncio.sleep(0)
        waiting.cancel()

    async def wait() -> float:
        async with asyncio.timeout(30):
            return (await limit.acquire()).waited

    asyncio.run(give_up())
    assert asyncio.run(wait()) >= 0


def test_tasks_of_two_loops_are_both_woken():
    limit = RateLimit(None, ROOMY)
    limit.acquire_sync(10)

    async def ask() -> None:
        async with asyncio.timeout(30):
            for _ in range(4):
                await limit.acquire()

    threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


async def test_timeouts_ttls_and_rates_have_their_alarms_together():
    tiers = Tiers(Tier("rate", rate=ROOMY), Tier("all", 2), ttl=0.05)
    await tiers.acquire(rate=10)
    served = asyncio.create_task(tiers.acquire(rate=2))
    with pytest.raises(TimeoutError):
        await tiers.acquire(rate=10, timeout=0.01)
    async with asyncio.timeout(30):
        assert (await served).waited > 0
        while (await tiers.stats())["all"].active:  # their ttls end
            await asyncio.sleep(0.005)
        await tiers.acquire(rate=1)


async def test_a_head_that_leaves_does_not_delay_who_needs_less():
    limit = RateLimit(None, Rate(10, per=1, burst=10_000))
    await limit.acquire(10_000)
    head = asyncio.create_task(limit.acquire(10_000))  # in 1,000 s
    await asyncio.sleep(0)
    small = asyncio.create_task(limit.acquire(1))
    await asyncio.sleep(0)
    head.cancel()
    async with asyncio.timeout(30):
        await small
