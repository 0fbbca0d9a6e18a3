"""Ending somebody else's acquisition, from another process."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
from tests.redis._client import Worker
from tests.redis._server import Server

from slotwise.redis import RedisConfig, RedisSemaphore

# So long that only a message can be as quick as these tests are patient.
NEVER = 3600


async def hears(worker: Worker) -> str:
    return await asyncio.to_thread(worker.hears)


def worker_of(server: Server, **options: Any) -> Worker:
    return Worker(name="s", value=1, config={"url": server.url}, **options)


async def test_a_kick_that_no_message_tells_of_is_found_by_the_heartbeat(
    server: Server, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
    with worker_of(server, heartbeat_max_interval=20, ping_interval=0.2) as worker:
        worker.tell("acquire")
        assert (await hears(worker)).startswith("acquired")
        [holder] = await semaphore.holders()
        # As a kick whose message was lost leaves it.
        client.eval(
            "redis.call('ZREM', KEYS[1], ARGV[1])",
            1,
            "adv-sem:semaphore_main:s",
            holder.acquisition_id,
        )
        said = await hears(worker)
        assert said.startswith("lost the server does not know it any more")
        assert "kicked" in said
