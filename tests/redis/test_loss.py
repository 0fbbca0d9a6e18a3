"""A holder that is silent too long, or outstays its ttl, is told and loses its slots."""

from __future__ import annotations

import asyncio

import redis
from tests.redis._inside import shared_of
from tests.redis._server import as_another_process
from tests.redis.test_semaphore import in_line

from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._acquisition import RedisAcquisition

MAIN, WAITING = "adv-sem:semaphore_main:x", "adv-sem:semaphore_waiting:x"


HEARTBEATS = "adv-sem:semaphore_waiting_heartbeat:x"


async def test_a_grant_is_no_sign_of_life(config: RedisConfig, client: redis.Redis) -> None:
    """Silent since it stood in line, a holder gives up when the server does: not a grant later."""
    interval = 3600.0
    semaphore = RedisSemaphore(
        name="x",
        value=1,
        heartbeat_max_interval=interval,
        ping_interval=3000,
        config=as_another_process(config),  # with a heartbeat thread that is not to beat
    )
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    [deadline] = [score for _, score in client.zrange(HEARTBEATS, 0, -1, withscores=True)]
    await semaphore.release(held)
    granted = await waiting
    assert client.zscore(MAIN, granted.acquisition_id) == deadline, "the server's end of patience"

    assert isinstance(granted, RedisAcquisition)
    heartbeat_thread = shared_of(semaphore).heartbeat_thread
    ends_at = granted.alive_at + interval
    instant = 1e-6  # of which several passed between the two
    assert granted.since > granted.alive_at + 5 * instant

    async def see_who_is_silent_at(now: float) -> None:
        shared_of(semaphore).lose_silent(now)

    await asyncio.to_thread(heartbeat_thread.run, see_who_is_silent_at(ends_at - instant))
    assert not granted.lost.is_set()
    await asyncio.to_thread(heartbeat_thread.run, see_who_is_silent_at(ends_at + instant))
    assert granted.lost.is_set()
    assert "no heartbeat got through" in (granted.lost.reason or "")
