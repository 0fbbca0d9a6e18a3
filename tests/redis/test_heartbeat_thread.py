"""The heartbeat thread: nobody is left without heartbeats, however it stops and starts."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time

import pytest
import redis
from tests.redis._inside import (
    is_running,
    shared_of,
    thread_of,
)
from tests.redis._server import as_another_process, until

from slotwise import RedisSemaphore
from slotwise.redis import RedisConfig, _heartbeat_thread
from slotwise.redis._heartbeat_thread import HeartbeatThread
from slotwise.redis._shared_client import SharedClient


@pytest.fixture
def config(config: RedisConfig) -> RedisConfig:
    """With a heartbeat thread of its own."""
    return as_another_process(config)


@pytest.mark.soak
async def test_a_shorter_interval_that_comes_while_the_next_heartbeat_is_scheduled_counts(
    config: RedisConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (
        RedisSemaphore(
            1, name=f"s{ping}", config=config, heartbeat_max_interval=3600, ping_interval=ping
        )
        for ping in (5, 0.5)
    )
    held = await slow.acquire()
    thread = shared_of(slow).heartbeat_thread
    loop = asyncio.get_running_loop()
    listed = HeartbeatThread._acquisitions
    newcomers: list[asyncio.Task[object]] = []
    has_asked = threading.Event()

    def listed_just_before_a_newcomer(self: HeartbeatThread) -> list[object]:
        acquisitions = listed(self)
        if not newcomers and self is thread:
            monkeypatch.undo()

            def ask() -> None:
                newcomers.append(asyncio.ensure_future(quick.acquire()))
                loop.call_later(0.1, has_asked.set)

            loop.call_soon_threadsafe(ask)
            has_asked.wait(0.5)  # it may have to wait for us
        return acquisitions

    monkeypatch.setattr(HeartbeatThread, "_acquisitions", listed_just_before_a_newcomer)
    thread.heartbeat_soon()
    await until(lambda: newcomers, "a newcomer")
    acquired = await asyncio.wait_for(newcomers[0], 30)
    await until(has_asked.is_set, "a newcomer that was not seen")
    await asyncio.to_thread(thread.run, asyncio.sleep(0))  # and the thread has gone on
    assert thread.interval == 0.5
    before = acquired.heard_at
    await until(lambda: acquired.heard_at > before, "a heartbeat within 5 s", within=3)
    await quick.release(acquired)
    await slow.release(held)


@pytest.mark.soak
async def test_a_newcomer_in_the_instant_in_which_the_thread_stops_has_another_one(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job has that runs every ten seconds, which is when an idle thread stops."""
    semaphore = RedisSemaphore(
        1, name="s", config=config, heartbeat_max_interval=3600, ping_interval=5
    )
    shared = shared_of(semaphore)
    loop = asyncio.get_running_loop()
    close_idle = SharedClient.close_idle
    acquired: list[object] = []

    def closed_just_before_a_newcomer(self: SharedClient) -> bool:
        closed = close_idle(self)
        if closed and self is shared:
            monkeypatch.undo()
            newcomer = asyncio.run_coroutine_threadsafe(semaphore.acquire(), loop)
            acquired.append(newcomer.result(30))
        return closed

    async with semaphore:  # its name has been noted by the next time
        await until(lambda: client.exists("adv-sem:names"), "the note")
    monkeypatch.setattr(SharedClient, "close_idle", closed_just_before_a_newcomer)
    monkeypatch.setattr(_heartbeat_thread, "IDLE", 0.1)
    shared.heartbeat_thread.schedule_ttl(time.monotonic())
    await until(lambda: acquired, "a newcomer")
    [held] = acquired
    await asyncio.sleep(0.05)
    await until(lambda: is_running(shared.heartbeat_thread), "a thread that sends its heartbeats")
    assert shared.heartbeat_thread.interval == 5
    await semaphore.release(held)


@pytest.mark.soak
async def test_no_heartbeat_misses_a_waiter_that_becomes_a_holder(
    config: RedisConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is among the holders before it leaves the waiters, which are read first."""
    semaphore = RedisSemaphore(1, name="s", config=config)
    shared = shared_of(semaphore)
    seen: list[bool] = []

    class Watched(dict):  # type: ignore[type-arg]
        def pop(self, *args: object) -> object:
            popped = dict.pop(self, *args)
            if popped is not None:
                seen.append(popped.acquisition_id in shared.holders)
            return popped

    monkeypatch.setattr(shared, "waiters", Watched())
    async with semaphore:
        pass
    assert seen == [True]


@pytest.mark.parametrize("called_by", ["a finalizer", "a hook"])
async def test_a_blocking_call_in_the_heartbeat_thread_does_not_block_it(
    config: RedisConfig, called_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The garbage collector runs finalizers in any thread, also in this one."""
    semaphore = RedisSemaphore(2, name="s", config=config)
    thread = shared_of(semaphore).heartbeat_thread
    kept, dropped = await semaphore.acquire(), await semaphore.acquire()
    errors: list[str] = []

    class Response:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            semaphore.release_sync(dropped)

    async def collect() -> None:
        Response()
        gc.collect()

    async def look() -> None:
        try:
            semaphore.stats_sync()
        except RuntimeError as error:
            errors.append(str(error))

    work = collect if called_by == "a finalizer" else look
    calling = asyncio.create_task(asyncio.to_thread(thread.run, work()))
    done, _ = await asyncio.wait([calling], timeout=10)
    if not done:  # let the thread go, or nothing ends
        await asyncio.to_thread(thread.end)
    assert done, "it waits for itself"
    if called_by == "a finalizer":

        async def is_free() -> bool:
            return (await semaphore.stats()).acquired_slots == 1

        async with asyncio.timeout(30):
            while not await is_free():
                await asyncio.sleep(0.01)
    else:
        [error] = errors
        assert "heartbeat thread" in error
        await semaphore.release(dropped)
    await semaphore.release(kept)


@pytest.mark.soak
async def test_a_loss_says_that_this_process_did_not_run(config: RedisConfig) -> None:
    """Else people look for the reason at the server."""
    semaphore = RedisSemaphore(
        1, name="s", config=config, heartbeat_max_interval=1, ping_interval=0.5
    )
    held = await semaphore.acquire()

    async def block() -> None:
        time.sleep(1.6)  # noqa: ASYNC251 - as a hook, a log handler or a busy machine does

    await asyncio.to_thread(shared_of(semaphore).heartbeat_thread.run, block())
    await asyncio.wait_for(held.lost, 30)
    reason = held.lost.reason or ""
    assert re.match(r"no heartbeat got through for [\d.]+ s: the heartbeat thread did not", reason)


async def test_a_late_caller_starts_no_thread_once_the_process_ends(config: RedisConfig) -> None:
    """It had stopped by itself before: nobody would have ended the next one."""
    heartbeat_thread = shared_of(RedisSemaphore(1, name="s", config=config)).heartbeat_thread
    heartbeat_thread.end()
    heartbeat_thread.ensure_running()
    assert thread_of(heartbeat_thread) is None
