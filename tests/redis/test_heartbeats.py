"""Heartbeats, ttl, and how a holder learns that it holds nothing any more."""

from __future__ import annotations

import asyncio

import pytest
import redis
from tests.redis._inside import shared_of
from tests.redis._server import until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore


def deadline_of(client: redis.Redis, acquisition_id: str) -> float:
    return client.zscore("adv-sem:semaphore_main:s", acquisition_id) or 0.0


async def test_heartbeats_of_a_process_keep_holders_and_waiters(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(
        1, name="s", heartbeat_max_interval=60, ping_interval=0.2, config=config
    )
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    before = deadline_of(client, held.acquisition_id)
    await until(lambda: deadline_of(client, held.acquisition_id) > before + 1.2, "a later deadline")
    assert not held.lost.is_set()
    assert (await semaphore.stats()).waiting == 1
    await semaphore.release(held)
    await semaphore.release(await waiting)
    assert_nothing_left(client)


async def test_a_loss_is_told_to_tasks_and_threads_and_cancels_if_asked(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(
        1,
        name="s",
        heartbeat_max_interval=60,
        ping_interval=0.2,
        cancel_task_on_loss=True,
        config=config,
    )

    async def work() -> None:
        async with semaphore:
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    holders = shared_of(semaphore).holders
    await until(lambda: any(each.record.name == "s" for each in holders.values()), "a holder")
    [holder] = [each for each in holders.values() if each.record.name == "s"]
    thread = asyncio.create_task(asyncio.to_thread(holder.lost.wait, 20))
    client.delete("adv-sem:semaphore_main:s")
    with pytest.raises(asyncio.CancelledError, match="lost"):
        await asyncio.wait_for(task, 20)
    assert await thread is True
    assert holder.lost.wait(0) is True


def calls_of_scripts(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])
