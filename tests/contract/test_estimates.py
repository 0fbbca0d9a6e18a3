"""When a newcomer would be served, on every driver: how long others hold, and who is ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import Limit, LimitFull, MemorySemaphore, Rate, RateLimit, Tier, Tiers
from slotwise.testing import FakeClock
from slotwise.testing import settle as settled
from tests.contract.conftest import Speak, Url

Make = Callable[..., Limit]


async def estimate(limit: Any, speak: Speak, *args: Any, **options: Any) -> float | None:
    seconds: float | None = await speak.say(limit, "estimate", *args, **options)
    return seconds


async def test_a_free_limit_serves_at_once_and_a_full_one_is_unknown_at_first(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(2)
    assert await estimate(limit, speak) == 0.0
    assert await estimate(limit, speak, 2) == 0.0
    held = await speak.acquire(limit)
    assert await estimate(limit, speak) == 0.0
    assert await estimate(limit, speak, 2) is None
    with pytest.raises(ValueError, match="that can never be granted"):
        await estimate(limit, speak, 3)
    await speak.release(limit, held)


async def test_a_caller_whose_timeout_cannot_be_met_is_refused_at_arrival(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1, shed="deadline")
    held = await speak.acquire(limit)
    await asyncio.sleep(0.1)
    await speak.release(limit, held)  # it is timed although nobody waits
    held = await speak.acquire(limit)
    waiting = [asyncio.create_task(limit.acquire(timeout=t)) for t in (None, 10**6) * 30]
    await speak.waiting(limit, 60)
    with pytest.raises(LimitFull, match=r"none is expected within 5 s") as refused:
        await speak.acquire(limit, timeout=5)
    assert refused.value.estimate is not None
    assert refused.value.estimate > 5
    with pytest.raises(TimeoutError):
        await speak.acquire(limit, timeout=0)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting[1:], timeout=30)
    await speak.release(limit, held)
    await speak.release(limit, await asyncio.wait_for(waiting[0], 30))
    async with asyncio.timeout(30), limit:
        pass


@pytest.mark.parametrize("wrong", ["", "late", 1, True])
def test_a_wrong_shed_is_an_error_at_once(make_limit: Make, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="shed must be 'deadline' or None"):
        make_limit(1, shed=wrong)


# ------------------------------------------------------------------- tiers, rates


async def test_a_rate_knows_when_there_is_enough(url: Url, name: str) -> None:
    rate = RateLimit(name, Rate(1, per=100, burst=10), url=url)
    assert await rate.estimate(cost=10) == 0.0
    await rate.acquire(cost=10)
    expected = await rate.estimate(cost=3)
    assert expected is not None
    assert 200 < expected <= 300
    waiting = asyncio.create_task(rate.acquire(cost=4))
    async with asyncio.timeout(30):
        while (await rate.stats()).waiting != 1:
            await asyncio.sleep(0.001)
    behind = await asyncio.to_thread(rate.estimate_sync, cost=3)
    assert behind is not None
    assert 600 < behind <= 700  # those ahead have to be served first
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_caller_of_a_rate_is_refused_exactly_if_its_time_is_too_short(
    url: Url, name: str
) -> None:
    rate = RateLimit(name, Rate(1, per=100, burst=10), url=url, shed="deadline")
    await rate.acquire(cost=10)
    with pytest.raises(LimitFull) as refused:
        await rate.acquire(cost=3, timeout=150)
    assert refused.value.estimate is not None
    assert 200 < refused.value.estimate <= 300
    waiting = asyncio.create_task(rate.acquire(cost=3, timeout=400))
    async with asyncio.timeout(30):
        while (await rate.stats()).waiting != 1:
            await asyncio.sleep(0.001)
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_the_queue_of_another_key_is_not_ahead(url: Url, name: str) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name=name, url=url)
    held = await tiers.acquire(tenant="acme")
    waiting = [asyncio.create_task(tiers.acquire(tenant="acme")) for _ in range(5)]
    async with asyncio.timeout(30):
        while (await tiers.stats())["all"].waiting != 5:
            await asyncio.sleep(0.001)
    assert await tiers.estimate(tenant="umbrella") == 0.0
    assert await tiers.at(tenant="umbrella").estimate() == 0.0
    assert await tiers.estimate(tenant="acme") is None
    with pytest.raises(TypeError):
        await tiers.estimate(nobody="x")
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await tiers.release(held)


# ---------------------------------------------------------- in memory, to the second


async def test_blocks_are_timed_after_the_first_call() -> None:
    with FakeClock() as clock:
        semaphore = MemorySemaphore(1)
        turns = asyncio.Semaphore(0)

        async def block() -> None:
            async with semaphore:
                await turns.acquire()

        assert await semaphore.estimate() == 0.0
        tasks = [asyncio.create_task(block()) for _ in range(5)]
        await settled()
        for expected in (None, 12.0, 9.0, 6.0):
            assert await semaphore.estimate() == expected
            clock.advance(3)
            turns.release()
            await settled()
        turns.release()
        await asyncio.wait(tasks)


async def test_a_name_that_was_forgotten_while_idle_sheds_again() -> None:
    with FakeClock() as clock:
        semaphore = MemorySemaphore(1, name="forgotten while idle", shed="deadline")
        async with semaphore.cm():
            clock.advance(5)
        clock.advance(600)  # it was idle for so long that it may be forgotten
        MemorySemaphore(2, name="forgotten while idle")  # made anew, with another value
        clock.advance(600)
        held = await semaphore.acquire()
        clock.advance(5)
        await semaphore.release(held)
        async with semaphore.cm():
            with pytest.raises(LimitFull):
                await semaphore.acquire(timeout=1)
