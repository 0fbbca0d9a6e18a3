"""How long keys live when instances of one name have different heartbeats."""

from __future__ import annotations

from typing import Any

import redis
from tests.redis._server import as_another_process

from slotwise.redis import RedisConfig, RedisSemaphore

MAIN, WAITING = "adv-sem:semaphore_main:x", "adv-sem:semaphore_waiting:x"


def patient_and_hasty(config: RedisConfig, **options: Any) -> tuple[RedisSemaphore, RedisSemaphore]:
    """One semaphore, as two processes with very different heartbeats would use it."""
    other = as_another_process(config)
    return (
        RedisSemaphore(name="x", value=2, heartbeat_max_interval=60, config=config),
        RedisSemaphore(name="x", value=2, heartbeat_max_interval=1, config=other, **options),
    )


async def test_a_short_heartbeat_does_not_shorten_the_life_of_others(
    config: RedisConfig, client: redis.Redis
) -> None:
    patient, hasty = patient_and_hasty(config)
    held = await patient.acquire()
    await hasty.release(await hasty.acquire())
    assert client.pttl(MAIN) > 50_000
    await patient.release(held)


async def test_a_key_that_was_rebuilt_lives_for_its_new_holders(
    config: RedisConfig, client: redis.Redis
) -> None:
    patient, hasty = patient_and_hasty(config, ttl=5)
    for _ in range(2):
        await patient.release(await patient.acquire())  # the key came, and went
    brief = await hasty.acquire()
    held = await patient.acquire()
    await hasty.release(brief)
    assert client.pttl(MAIN) > 50_000
    await patient.release(held)
