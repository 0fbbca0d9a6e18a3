"""Closing on Redis: what other processes notice, and for how long the server remembers it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from tests.redis._client import Worker
from tests.redis._server import Server, until
from tests.redis.faults._proxy import Freezes

from slotwise import SemaphoreClosed
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.tiers import Tier, Tiers

DAYS = 24 * 3600


def worker_of(server: Server, **options: Any) -> Worker:
    return Worker(name="s", value=1, config={"url": server.url}, **options)


async def hears(worker: Worker) -> str:
    return await asyncio.to_thread(worker.hears)


async def in_line(semaphore: RedisSemaphore, count: int) -> None:
    async def enough() -> bool:
        return (await semaphore.stats()).waiting == count

    await until(enough, f"{count} in line")


async def test_a_local_close_is_not_noticed_by_other_processes(
    server: Server, config: RedisConfig
) -> None:
    semaphore = RedisSemaphore(1, name="s", config=config)
    held = await semaphore.acquire()
    ours = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    with worker_of(server) as worker:
        worker.tell("acquire")
        await in_line(semaphore, 2)
        await semaphore.close()
        with pytest.raises(SemaphoreClosed, match=r"'s' is closed$"):
            await ours
        await in_line(semaphore, 1)
        assert await semaphore.release(held)
        assert (await hears(worker)).startswith("acquired 1 ")
        worker.tell("release")
        assert await hears(worker) == "released True"


async def test_many_waiters_that_a_local_close_fails_leave_the_queue(config: RedisConfig) -> None:
    semaphore = RedisSemaphore(1, name="s", heartbeat_max_interval=300, config=config)
    held = await semaphore.acquire()
    ours = [asyncio.create_task(semaphore.acquire()) for _ in range(10)]
    await in_line(semaphore, 10)
    await semaphore.close()
    await asyncio.gather(*ours, return_exceptions=True)
    await in_line(semaphore, 0)
    assert await semaphore.release(held)
    newcomer = RedisSemaphore(1, name="s", heartbeat_max_interval=300, config=config)
    granted = await newcomer.acquire(timeout=60)
    assert await newcomer.release(granted)


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
async def test_a_local_close_does_not_wait_for_a_blocked_loop_that_has_only_holders(
    config: RedisConfig, kind: str
) -> None:
    limit: Any = RedisSemaphore(1, name="s", config=config)
    if kind == "tiers":
        limit = Tiers(Tier("all", 1), name="s", url=config)
    held = await limit.acquire()
    thread = threading.Thread(target=limit.close_sync)
    thread.start()
    thread.join(20)  # this loop does nothing meanwhile
    assert not thread.is_alive()
    assert await limit.release(held)


async def test_a_waiter_that_missed_the_message_is_told_by_its_heartbeat(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(1, name="s", ping_interval=0.1, config=config)
    held = await semaphore.acquire()
    waiter = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    # As close.lua does it, but for the messages.
    client.hset("adv-sem:semaphore_state:s", mapping={".closed": "1", ".reason": "why"})
    client.delete("adv-sem:semaphore_waiting:s", "adv-sem:semaphore_waiting_heartbeat:s")
    with pytest.raises(SemaphoreClosed) as closed:
        await asyncio.wait_for(waiter, 30)
    assert closed.value.reason == "why"
    assert await semaphore.release(held)


async def test_it_is_remembered_for_30_days_after_the_last_call_that_met_it(
    config: RedisConfig, client: redis.Redis
) -> None:
    config = config.with_options(namespace="own")
    semaphore = RedisSemaphore(3, name="s", config=config)
    await semaphore.close_everywhere("holidays")
    keys = ("own:semaphore_state:s", "own:semaphore_max:s")

    async def taken() -> None:
        with pytest.raises(SemaphoreClosed):
            await semaphore.try_acquire()

    for meet in (taken, semaphore.stats):
        for key in keys:
            client.expire(key, 1 * DAYS)
        await meet()
        for key in keys:
            assert 30 * DAYS - 60 <= client.ttl(key) <= 30 * DAYS
    assert {*client.keys("own:*")} == {*keys, "own:names"}
    stats = await RedisSemaphore.get_acquired_stats(config=config)
    assert (stats["s"].closed, stats["s"].reason, stats["s"].max_slots) == (True, "holidays", 3)
    await semaphore.reopen()
    assert await RedisSemaphore.get_acquired_stats(config=config) == {}


async def test_a_grant_whose_reply_was_lost_before_the_close_is_a_grant(
    config: RedisConfig, server: Server, client: redis.Redis
) -> None:
    """The request is sent again over the next connection, and the server knows the holder."""
    operator = RedisSemaphore(1, name="s", config=config)
    with Freezes(server.port) as proxy:
        semaphore = RedisSemaphore(1, name="s", config=RedisConfig(proxy.url))
        await semaphore.stats()  # connected
        proxy.freeze_replies()
        acquiring = asyncio.create_task(semaphore.acquire())
        await until(lambda: client.exists("adv-sem:semaphore_main:s"), "the grant")
        await operator.close_everywhere()
        proxy.drop()
        proxy.thaw()
        held = await asyncio.wait_for(acquiring, 30)
        assert held.slot_number == 1
        assert await semaphore.release(held)
    await operator.reopen()


async def test_names_that_were_closed_leave_nothing_behind(config: RedisConfig) -> None:
    from slotwise.redis._shared_client import generations

    for number in range(50):
        semaphore = RedisSemaphore(1, name=f"passing-{number}", config=config)
        async with semaphore:
            pass
        await semaphore.close()
    del semaphore
    assert not [key for key in generations.open_names() if "passing-" in str(key)]
