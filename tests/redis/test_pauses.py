"""Pauses on a server: for other processes, by its clock, and without leaving anything behind."""

from __future__ import annotations

import asyncio
import time

import redis
from tests.redis._client import Worker
from tests.redis._server import Server

from slotwise import RedisSemaphore, Tier, Tiers
from slotwise.redis import RedisConfig

# Heartbeats come so rarely that nobody is found by them.
LAZY = {"heartbeat_max_interval": 600}


async def _waiting(limit, count: int) -> None:
    async with asyncio.timeout(30):
        while (await limit.stats()).waiting != count:
            await asyncio.sleep(0.002)


async def test_a_waiter_in_another_process_is_served_when_the_pause_ends(server: Server) -> None:
    """It began to wait before, and nobody is there to release anything when it ends."""
    semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url), **LAZY)
    with Worker(name="s", value=1, config={"url": server.url}, **LAZY) as worker:
        held = await semaphore.acquire()
        worker.tell("acquire")
        await _waiting(semaphore, 1)
        paused_at = time.monotonic()
        await semaphore.pause(0.3)
        await semaphore.release(held)
        assert worker.hears(within=30).startswith("acquired")
        assert time.monotonic() - paused_at > 0.29


async def test_a_pause_is_kept_by_the_server_and_leaves_nothing_behind(
    server: Server, client: redis.Redis
) -> None:
    config = RedisConfig(server.url)
    await RedisSemaphore(name="s", value=2, config=config).pause(1000)
    await Tiers(Tier("host", 1, keyed=True), Tier("all", 2), name="t", url=config).pause(
        1000, host="a"
    )
    for key in client.keys("*"):
        assert client.pttl(key) > 0, f"{key} would stay forever"
    for kind in ("semaphore_state", "tiers_state"):
        [key] = client.keys(f"*:{kind}:*")
        assert client.pttl(key) > 1_000_000, f"{key} goes before the pause ends"
    assert await RedisSemaphore(name="s", value=2, config=config).try_acquire() is None


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


async def test_a_quick_request_and_a_release_find_the_pause(server: Server) -> None:
    """Those of the short ways of the scripts, which a semaphore in use takes."""
    semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
    for _ in range(3):
        async with semaphore:
            pass
    held = await semaphore.acquire()
    waiting = [asyncio.create_task(semaphore.acquire()) for _ in range(4)]
    await _waiting(semaphore, 4)
    began = time.monotonic()
    await semaphore.pause(0.3)
    await semaphore.release(held)
    for each in waiting:
        await semaphore.release(await asyncio.wait_for(each, 30))
        assert time.monotonic() - began > 0.2
    async with asyncio.timeout(30), semaphore:
        pass
