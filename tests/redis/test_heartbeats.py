"""Heartbeats, ttl, and how a holder learns that it holds nothing any more."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from tests.redis._inside import shared_of, spawn, thread_of
from tests.redis._keys import SemaphoreKeys
from tests.redis._server import as_another_process, until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._diagnosis import Unreachable
from slotwise.redis._heartbeats import HeartbeatSender
from slotwise.redis._shared_client import NameRecord
from slotwise.testing import settle


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


async def test_the_ttl_ends_a_hold_however_often_it_beats(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, ttl=0.3, heartbeat_max_interval=1, config=config)
    started = time.monotonic()
    first = await semaphore.acquire()
    patient = RedisSemaphore(name="s", value=1, config=config)
    second = await patient.acquire(timeout=20)
    assert time.monotonic() - started >= 0.3
    await asyncio.wait_for(first.lost, 10)
    assert first.lost.is_set()
    assert "ttl" in (first.lost.reason or "")
    assert await semaphore.release(first) is False
    assert await patient.release(second) is True
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


async def test_a_release_sets_no_loss_and_equality_does_not_know_of_it(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    acquired = await semaphore.acquire()
    assert acquired.lost is acquired.lost
    await semaphore.release(acquired)
    assert not acquired.lost.is_set()
    assert acquired.lost.wait(0) is False
    assert acquired == type(acquired).__mro__[1](acquired.acquisition_id, acquired.slot_number)


def calls_of_scripts(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


async def send_until_answered(shared: Any) -> Any:
    """Send heartbeats of one name over a client that is made up."""
    sender = HeartbeatSender(shared)
    record = NameRecord("semaphore", "adv-sem", SemaphoreKeys("adv-sem", "s"))
    return await sender._send_until_answered([(record, 1.0, [], [])], [], [])


@pytest.mark.soak
async def test_a_node_is_given_up_for_its_own_silence_and_the_next_connection_gets_more_time() -> (
    None
):
    """A slow node would never get to answer, if each had only what the one before has left."""
    reply = asyncio.get_running_loop().create_future()
    silences = iter((0.0, 0.1, 0.21, 0.0, 0.21, 0.3, 0.41))  # two connections, each from 0
    seen: list[float] = []
    given_up_after: list[float] = []

    class SlowClient:
        def run(self, *_: object) -> asyncio.Future[Any]:
            return reply

        def silence(self, _: object) -> float:
            seen.append(next(silences, 0.0))
            if len(seen) == 8:
                reply.set_result("answered")
            return seen[-1]

        def drop_connection(self, _: object) -> None:
            given_up_after.append(seen[-1])

    client = SlowClient()
    shared: Any = SimpleNamespace(
        client=lambda: client,
        cluster=object(),
        holders={},
        waiters={},
        settings=SimpleNamespace(config=RedisConfig(reply_timeout=0.05)),
    )
    assert await asyncio.wait_for(send_until_answered(shared), 30) == "answered"
    assert given_up_after == [0.21, 0.41]


@pytest.mark.soak
async def test_the_connection_to_a_slow_server_is_kept() -> None:
    """Or it would have to read everything anew; one that is dead is found out by a probe."""
    reply = asyncio.get_running_loop().create_future()
    shared: Any = SimpleNamespace(  # without a way to give up a connection
        client=lambda: SimpleNamespace(run=lambda *_: reply, silence=lambda _: 100.0),
        cluster=None,
        settings=SimpleNamespace(config=RedisConfig(reply_timeout=0.05)),
    )
    sending = asyncio.create_task(send_until_answered(shared))
    await asyncio.sleep(0.1)
    reply.set_result("answered")
    assert await asyncio.wait_for(sending, 30) == "answered"


@pytest.mark.soak
async def test_the_thread_ends_in_order_when_it_is_stopped_while_it_ends(
    config: RedisConfig,
) -> None:
    """As when a process ends just after it has closed its last semaphore."""
    semaphore = RedisSemaphore(1, name="s", config=as_another_process(config))
    await semaphore.release(await semaphore.acquire())
    heartbeats = shared_of(semaphore).heartbeat_thread
    thread, begun = thread_of(heartbeats), threading.Event()
    ended: list[bool] = []

    async def ends_slowly() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.01)
            ended.append(True)

    spawn(heartbeats, ends_slowly())
    assert await asyncio.to_thread(begun.wait, 30)
    await asyncio.to_thread(heartbeats.end)
    assert thread is not None
    await asyncio.to_thread(thread.join, 30)
    assert ended == [True]


@pytest.mark.soak
async def test_a_release_in_the_background_ends_with_the_thread_though_its_attempt_has_just_failed(
    config: RedisConfig,
) -> None:
    thread = shared_of(RedisSemaphore(1, name="s", config=config)).heartbeat_thread
    replies: list[asyncio.Future[None]] = []

    async def attempt(_: object) -> None:
        replies.append(asyncio.get_running_loop().create_future())
        await replies[-1]

    until = time.monotonic() + 60
    releasing = asyncio.create_task(thread._release_in_attempts(attempt, until))
    await settle()
    replies[0].set_exception(Unreachable("the connection was closed by us"))
    await asyncio.sleep(0)  # the attempt has failed, and nobody has heard of it yet
    releasing.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await releasing
    assert len(replies) == 1
