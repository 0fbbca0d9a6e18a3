"""Who enters first in tiers: see tests/contract/test_order.py for semaphores."""

from __future__ import annotations

import asyncio
import random

import pytest

from slotwise import Tier


async def cm(limits, user, name, entered):
    async with limits.cm(user=user):
        entered.append(name)


async def acquire(limits, user, name, entered):
    acquired = await limits.acquire(user=user, timeout=1000)
    entered.append(name)
    await limits.release(acquired)


async def try_acquire(limits, user, name, entered):
    acquired = await limits.try_acquire(user=user)
    assert acquired is not None
    entered.append(name)
    await limits.release(acquired)


@pytest.mark.parametrize("waits_for", ["user", "all"])
@pytest.mark.parametrize("newcomer", [cm, acquire, try_acquire])
@pytest.mark.parametrize("way", [cm, acquire])
async def test_a_newcomer_does_not_enter_before_a_waiter_that_was_granted_earlier(
    tiers, look, way, newcomer, waits_for
):
    wide = 9 if waits_for == "user" else 2
    limits = tiers(Tier("user", 2, keyed=True), Tier("all", wide))
    entered: list[str] = []
    held = [await limits.acquire(user="a") for _ in range(2)]
    waiter = asyncio.create_task(way(limits, "a" if waits_for == "user" else "b", "w", entered))
    await look.waiters(limits, 1)
    for each in held:
        limits.release_sync(each)  # one slot for the waiter, the other is free
    await newcomer(limits, "a" if waits_for == "user" else "c", "n", entered)
    await waiter
    assert entered == ["w", "n"]


async def test_waiters_of_one_path_enter_in_the_order_of_their_arrival(tiers, look):
    dice = random.Random(7)
    limits = tiers(Tier("user", 3, keyed=True), Tier("all", 2))
    for _ in range(3):
        entered: list[int] = []
        held = [await limits.acquire(user="a") for _ in range(2)]
        tasks = []
        for number in range(6):
            tasks.append(
                asyncio.create_task(dice.choice([cm, acquire])(limits, "a", number, entered))
            )
            await look.waiters(limits, number + 1)
        gone = dice.randrange(6)
        tasks[gone].cancel()
        await look.waiters(limits, 5)
        for each in held:
            await limits.release(each)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert entered == [number for number in range(6) if number != gone]
