"""When a newcomer would be served, on every driver: how long others hold, and who is ahead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import Limit, LimitFull, MemorySemaphore, Rate, RateLimit, Tier, Tiers
from slotwise.testing import FakeClock
from slotwise.testing import settle as settled
from tests.contract.conftest import Speak

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


async def test_the_estimate_grows_with_the_queue_and_with_how_long_slots_are_held(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1)
    started = time.monotonic()
    held = await speak.acquire(limit)
    waiting = [asyncio.create_task(speak.acquire(limit)) for _ in range(4)]
    await speak.waiting(limit, 4)
    assert await estimate(limit, speak) is None
    for _ in range(2):
        await asyncio.sleep(0.05)
        await speak.release(limit, held)
        [first], left = await asyncio.wait(waiting, return_when="FIRST_COMPLETED", timeout=30)
        held, waiting = first.result(), [*left]
    longest = time.monotonic() - started
    expected = await estimate(limit, speak)
    assert expected is not None
    # A hold took more than some 50 ms; two are ahead, and one slot has to come back for each.
    assert 0.04 * 3 < expected < longest * 3
    for _ in range(2):
        await speak.release(limit, held)
        [first], left = await asyncio.wait(waiting, return_when="FIRST_COMPLETED", timeout=30)
        held, waiting = first.result(), [*left]
    shorter = await estimate(limit, speak)
    assert shorter is not None
    assert shorter < time.monotonic() - started  # one slot has to come back
    await speak.release(limit, held)
    assert await estimate(limit, speak) == 0.0


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


async def test_a_refusal_says_when_a_newcomer_would_be_served(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1, max_waiting=1)
    held = await speak.acquire(limit)
    for _ in range(2):
        waiting = asyncio.create_task(speak.acquire(limit))
        await speak.waiting(limit, 1)
        with pytest.raises(LimitFull) as refused:
            await speak.acquire(limit)
        await asyncio.sleep(0.02)
        await speak.release(limit, held)
        held = await waiting
    assert refused.value.estimate is not None
    assert refused.value.estimate > 0.01
    assert "a newcomer would be served in about" in str(refused.value)
    await speak.release(limit, held)


@pytest.mark.parametrize("wrong", ["", "late", 1, True])
def test_a_wrong_shed_is_an_error_at_once(make_limit: Make, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="shed must be 'deadline' or None"):
        make_limit(1, shed=wrong)


# ------------------------------------------------------------------- tiers, rates


async def test_a_closed_limit_serves_nobody_knows_when(make: Callable[..., Any]) -> None:
    semaphore = make(1)
    await semaphore.close_everywhere()
    assert await semaphore.estimate() is None
    await semaphore.reopen()
    assert await semaphore.estimate() == 0.0


@pytest.fixture(params=["memory", "processes", "redis"])
def rate_url(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("server").url)
    if request.param == "memory":
        return "memory://"
    return f"process://{request.getfixturevalue('tmp_path')}/slots"


async def test_a_rate_is_called_one_in_errors(rate_url: str, name: str) -> None:
    rate = RateLimit(name, Rate(1, per=100, burst=10), url=rate_url)
    with pytest.raises(ValueError, match=f"a cost of 11 .*{name!r}, which") as never:
        await rate.acquire(cost=11)
    assert str(never.value).count("cost of") <= 2
    assert "tiers cost" not in str(never.value)
    await rate.acquire(cost=10)
    with pytest.raises(TimeoutError, match=f"no slot of .*{name!r} ") as late:
        await rate.acquire(timeout=0.01)
    assert "tiers cost" not in str(late.value)


async def test_a_rate_knows_when_there_is_enough(rate_url: str, name: str) -> None:
    rate = RateLimit(name, Rate(1, per=100, burst=10), url=rate_url)
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
    rate_url: str, name: str
) -> None:
    rate = RateLimit(name, Rate(1, per=100, burst=10), url=rate_url, shed="deadline")
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


async def test_the_queue_of_another_key_is_not_ahead(rate_url: str, name: str) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name=name, url=rate_url)
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


async def test_each_slot_that_has_to_come_back_takes_a_mean_hold_over_the_value() -> None:
    with FakeClock() as clock:
        semaphore = MemorySemaphore(2)
        held = [await semaphore.acquire() for _ in range(2)]
        tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(8)]
        await settled()
        for _ in range(3):
            clock.advance(10)
            for each in held:
                await semaphore.release(each)
            await settled()
            held = [task.result() for task in tasks if task.done()]
            tasks = [task for task in tasks if not task.done()]
        assert len(tasks) == 2
        assert await semaphore.estimate() == 15.0  # three have to come back, 10 s each, two at once
        assert await semaphore.estimate(2) == 20.0
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert await semaphore.estimate() == 5.0


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
