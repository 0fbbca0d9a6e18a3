"""A limit that is paused, on every driver: nothing is granted, and then everything at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import AcquireTimeout, Limit, Semaphore, SemaphoreClosed
from tests.contract.conftest import Speak

Make = Callable[..., Limit]
MakeSemaphore = Callable[..., Semaphore]

LONG = 100.0  # no test waits for the end of that
SHORT = 0.15


async def test_nothing_is_granted_while_it_is_paused_and_holders_are_undisturbed(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(2)
    held = await speak.acquire(limit)
    await speak.pause(limit, LONG)
    assert await speak.locked(limit)
    assert await speak.try_acquire(limit) is None
    with pytest.raises(AcquireTimeout, match="paused for another"):
        await speak.acquire(limit, timeout=0)
    with pytest.raises(AcquireTimeout, match="paused for another"):
        await speak.acquire(limit, timeout=0.02)
    assert not held.lost
    assert await speak.release(limit, held) is True
    assert await speak.try_acquire(limit) is None
    assert (await speak.stats(limit)).acquired_slots == 0


async def test_waiters_are_served_in_order_when_the_pause_ends(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1)
    held = await speak.acquire(limit)
    waiting = [asyncio.create_task(speak.acquire(limit))]
    await speak.waiting(limit, 1)
    paused_at = time.monotonic()
    await speak.pause(limit, SHORT)
    waiting.append(asyncio.create_task(speak.acquire(limit)))
    await speak.waiting(limit, 2)
    await speak.release(limit, held)
    if time.monotonic() - paused_at < SHORT:
        assert not any(task.done() for task in waiting)
    first = await asyncio.wait_for(waiting[0], 30)
    assert time.monotonic() - paused_at > SHORT - 0.01
    assert not waiting[1].done()
    await speak.release(limit, first)
    await speak.release(limit, await asyncio.wait_for(waiting[1], 30))
    assert not await speak.locked(limit)
    assert await speak.try_acquire(limit) is not None


async def test_the_longest_pause_wins_and_none_is_ended_by_a_shorter_one(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1)
    await speak.pause(limit, LONG)
    await speak.pause(limit, 0.01)
    await speak.pause(limit, 0)
    await asyncio.sleep(0.03)
    assert await speak.try_acquire(limit) is None
    left = (await speak.stats(limit)).paused_for
    assert LONG / 2 < left <= LONG
    await speak.pause(limit, 2 * LONG)
    assert LONG < (await speak.stats(limit)).paused_for <= 2 * LONG


async def test_estimate_and_explain_tell_of_a_pause(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(2)
    assert (await limit.explain()).estimate == 0.0
    await speak.pause(limit, LONG)
    seconds = await speak.say(limit, "estimate")
    assert LONG / 2 < seconds <= LONG
    explained = await speak.say(limit, "explain")
    assert explained.place == 1
    assert LONG / 2 < explained.lacks[0].paused_for <= LONG
    assert "paused for another" in str(explained)
    assert LONG / 2 < explained.estimate <= LONG
    waiting = asyncio.create_task(limit.acquire())
    await speak.waiting(limit, 1)
    [waiter] = await getattr(limit, "tiers", limit).waiters()
    explained = await speak.say(limit, "explain", waiter.acquisition_id)
    assert (explained.state, explained.place) == ("waiting", 1)
    assert LONG / 2 < explained.estimate <= LONG
    waiting.cancel()
    await asyncio.wait([waiting])
    await speak.waiting(limit, 0)


@pytest.mark.parametrize("wrong", [None, "1", -1, float("inf"), float("nan"), True])
async def test_a_pause_that_is_not_a_time_is_an_error_at_once(
    make_limit: Make, speak: Speak, wrong: Any
) -> None:
    limit = make_limit(1)
    with pytest.raises((TypeError, ValueError), match="seconds must be"):
        await speak.pause(limit, wrong)
    assert await speak.try_acquire(limit) is not None


# ------------------------------------------------------------------ semaphores


async def test_a_closed_semaphore_cannot_be_paused(make: MakeSemaphore, speak: Speak) -> None:
    semaphore = make(1)
    await speak.close_everywhere(semaphore, "for a while")
    with pytest.raises(SemaphoreClosed, match="for a while"):
        await speak.pause(semaphore, 1)
    await speak.reopen(semaphore)
    await speak.close(semaphore)
    with pytest.raises(SemaphoreClosed):
        await speak.pause(semaphore, 1)


async def test_a_request_that_replaces_a_holder_waits_while_it_is_paused(
    make: MakeSemaphore, speak: Speak
) -> None:
    semaphore = make(1)
    held = await speak.acquire(semaphore)
    await speak.pause(semaphore, LONG)
    with pytest.raises(AcquireTimeout):
        await speak.acquire(semaphore, on_full="replace", timeout=0.02)
    assert not held.lost
    assert await speak.release(semaphore, held) is True
