"""Pauses on a server: for other processes, by its clock, and without leaving anything behind."""

from __future__ import annotations

import asyncio

import redis
from tests.redis._server import Server

from slotwise import RedisSemaphore, Tier, Tiers
from slotwise.redis import RedisConfig

# Heartbeats come so rarely that nobody is found by them.


async def _waiting(limit, count: int) -> None:
    async with asyncio.timeout(30):
        while (await limit.stats()).waiting != count:
            await asyncio.sleep(0.002)


async def test_a_pause_that_is_ended_early_keeps_nothing_for_its_whole_length(
    server: Server, client: redis.Redis
) -> None:
    config, day = RedisConfig(server.url), 24 * 3_600_000
    semaphore, resized = (RedisSemaphore(name=name, value=2, config=config) for name in "sr")
    tiers = Tiers(Tier("host", 1, keyed=True), Tier("all", 2), name="t", url=config)
    await resized.resize(3)

    def life(key: str) -> int:
        return int(client.pttl(f"adv-sem:{key}"))

    for each in (semaphore, resized, tiers):
        await each.pause(30 * 24 * 3600)
    for key in ("semaphore_state:s", "semaphore_max:s", "tiers_state:t"):
        assert 30 * day < life(key) < 31 * day, "no longer than it has to"
    await semaphore.reopen()
    await resized.reopen()
    assert 0 < life("semaphore_state:s") <= 120_000
    assert 0 < life("semaphore_max:s") <= 120_000
    assert 0.9 * day < life("semaphore_state:r") <= 1.6 * day, "the other value is known for a day"
    held = await resized.try_acquire(3)
    assert held is not None
    await resized.release(held)
