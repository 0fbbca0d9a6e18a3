"""Blocks of a rate, whose cost nobody can settle: nothing of them stays, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest
import redis

from slotwise import Rate, RateLimit
from slotwise.redis import RedisConfig

RATE = Rate(100, per=3600, burst=100)


def remembered(client: redis.Redis) -> int:
    """How many acquisitions the server remembers, so that their costs can be settled."""
    return sum(client.hlen(key) for key in client.keys("*tiers_taken*"))


async def test_a_block_leaves_nothing_to_be_settled(
    config: RedisConfig, client: redis.Redis
) -> None:
    rate = RateLimit("r", RATE, url=config)
    async with rate:
        pass
    assert remembered(client) == 0
    await rate.acquire()
    assert remembered(client) == 1


async def test_blocks_and_acquisitions_of_one_tick_can_be_settled_where_they_may(
    config: RedisConfig,
) -> None:
    rate = RateLimit("r", RATE, url=config)
    await rate.level()  # connected, so that the requests of a tick travel together

    async def block() -> None:
        async with rate:
            pass

    acquired, *_ = await asyncio.gather(
        *(rate.acquire(), block(), rate.acquire(), block(), rate.acquire())
    )
    await rate.settle(acquired, 11)
    assert (await rate.level()).level == pytest.approx(100 - 4 - 11, abs=0.5)


async def test_a_block_that_is_cancelled_before_it_learns_of_its_grant_takes_nothing(
    config: RedisConfig,
) -> None:
    rate = RateLimit("r", RATE, url=config)
    await rate.level()

    async def block() -> None:
        async with rate:
            pytest.fail("it was cancelled")

    for _ in range(20):
        entering = asyncio.create_task(block())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the request is sent
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    async def given_back() -> bool:
        level = (await rate.level()).level
        assert level is not None
        assert level <= 100
        return level > 99

    async with asyncio.timeout(20):
        while not await given_back():
            await asyncio.sleep(0)
