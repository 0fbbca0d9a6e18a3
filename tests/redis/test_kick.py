"""Ending somebody else's acquisition, from another process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from tests.redis._client import Worker
from tests.redis._server import Server, until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore

# So long that only a message can be as quick as these tests are patient.
NEVER = 3600


async def hears(worker: Worker) -> str:
    return await asyncio.to_thread(worker.hears)


def worker_of(server: Server, **options: Any) -> Worker:
    return Worker(name="s", value=1, config={"url": server.url}, **options)


async def test_a_kicked_holder_in_another_process_learns_it_and_the_next_one_has_its_slot(
    server: Server, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(
        name="s", value=1, heartbeat_max_interval=NEVER, config=RedisConfig(server.url)
    )
    with worker_of(server, heartbeat_max_interval=NEVER) as worker:
        worker.tell("acquire")
        assert (await hears(worker)).startswith("acquired 1 ")
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(semaphore, 1)
        [holder] = await semaphore.holders()
        assert holder.pid == worker.process.pid
        assert await semaphore.kick(holder.acquisition_id) is True
        acquired = await asyncio.wait_for(waiting, 30)
        assert (await hears(worker)) == "lost it was kicked"
        assert await semaphore.kick(holder.acquisition_id) is False
        assert await semaphore.release(acquired) is True
    assert_nothing_left(client)


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


async def test_a_kick_takes_all_slots_and_cancels_the_task_if_asked(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=3, cancel_task_on_loss=True, config=config)

    async def work() -> None:
        async with semaphore.cm(3):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await until(lambda: client.zcard("adv-sem:semaphore_main:s") == 3, "a holder of all")
    [holder] = await semaphore.holders()
    waiting = [asyncio.create_task(semaphore.acquire()) for _ in range(4)]
    await in_line(semaphore, 4)
    assert await semaphore.kick(f"{holder.acquisition_id}#2") is False, "no id, but a part of one"
    assert await asyncio.to_thread(semaphore.kick_sync, holder.acquisition_id) is True
    with pytest.raises(asyncio.CancelledError, match="it was kicked"):
        await asyncio.wait_for(task, 30)
    taken = await asyncio.wait_for(asyncio.gather(*waiting[:3]), 30)
    assert sorted(each.slot_number for each in taken) == [1, 2, 3]
    assert (await semaphore.stats()).waiting == 1
    for each in taken:
        assert await semaphore.release(each)
    assert await semaphore.release(await waiting[3])
    assert_nothing_left(client)
