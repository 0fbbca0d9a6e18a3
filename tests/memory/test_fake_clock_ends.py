"""What goes by a fake clock ends with it: the next test has another clock, which begins earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slotwise import (
    AcquireTimeout,
    Adaptive,
    Errors,
    MemorySemaphore,
    Rate,
    RateLimit,
    Tier,
    Tiers,
)
from slotwise.testing import FakeClock

HOUR = 3600


@pytest.mark.parametrize("name", ["a rate of two clocks", None])
async def test_a_rate_is_full_again(name: str | None) -> None:
    rate = RateLimit(name, Rate(10, per=60, burst=10))
    for _ in range(2):
        with FakeClock() as clock:
            clock.advance(HOUR)
            await rate.acquire(cost=10, timeout=0)
    with FakeClock() as clock:
        await rate.acquire(cost=10, timeout=0)
        waiting = asyncio.create_task(rate.acquire(cost=10))
        await asyncio.sleep(0)
        clock.advance(60)
        await waiting


async def test_those_who_wait_for_a_rate_are_served(
    settle: Callable[[], Awaitable[None]],
) -> None:
    rate = RateLimit(None, Rate(1, per=60))
    with FakeClock():
        waiting = [asyncio.create_task(rate.acquire()) for _ in range(5)]
        await settle()
    await asyncio.gather(*waiting)
    assert (await rate.stats()).waiting == 0


async def test_keys_of_a_rated_tier_are_full_again() -> None:
    tiers = Tiers(Tier("user", 3, keyed=True), Tier("calls", rate=Rate(1, per=60), keyed=True))
    for _ in range(3):
        with FakeClock() as clock:
            clock.advance(HOUR)
            async with tiers.cm(user="ada", calls="ada", timeout=0):
                pass


@pytest.mark.parametrize("name", ["held over two clocks", None])
async def test_holds_with_a_ttl_and_waits_with_a_timeout_are_over(name: str | None) -> None:
    semaphore = MemorySemaphore(1, name=name, ttl=60)
    with FakeClock() as clock:
        clock.advance(HOUR)
        acquired = await semaphore.acquire()
        waiting = asyncio.create_task(semaphore.acquire(timeout=30))
        await asyncio.sleep(0)
    with pytest.raises(AcquireTimeout):
        await waiting
    assert acquired.lost.is_set()
    assert not await semaphore.locked()


async def test_what_has_no_ttl_stays_held() -> None:
    semaphore, tiers = MemorySemaphore(1), Tiers(Tier("all", 1))
    with FakeClock():
        held = await semaphore.acquire(), await tiers.at().acquire()
    assert await semaphore.locked()
    assert await tiers.at().locked()
    assert await semaphore.release(held[0])
    assert await tiers.release(held[1])


async def test_pauses_are_over() -> None:
    limits = [MemorySemaphore(1), Tiers(Tier("all", 1)).at(), RateLimit(None, Rate(1, per=1))]
    with FakeClock() as clock:
        clock.advance(HOUR)
        for limit in limits:
            await limit.pause(600)
    for limit in limits:
        assert await limit.try_acquire() is not None


async def test_adaptive_values_start_over() -> None:
    rules = Adaptive(start=10, min=1, max=20, algorithm=Errors())
    semaphore, tiers = MemorySemaphore(rules), Tiers(Tier("all", rules))
    with FakeClock() as clock:
        clock.advance(HOUR)
        for limit in (semaphore, tiers.at()):
            await limit.release(await limit.acquire(), outcome="dropped")
            assert (await limit.stats()).max_slots < 10
    for limit in (semaphore, tiers.at()):
        assert (await limit.stats()).max_slots == 10
    with FakeClock() as clock:
        for limit in (semaphore, tiers.at()):
            await limit.release(await limit.acquire(), outcome="dropped")
            assert (await limit.stats()).max_slots < 10
