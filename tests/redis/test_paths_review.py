"""Attacks on RedisPaths that once succeeded: interrupts, a slow start, losses nobody told of."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest
import redis
from tests.redis._interrupt import interrupted_on_its_way_to
from tests.redis._server import until

from slotwise import AcquireTimeout, BackendError, Tier, Tiers
from slotwise._core.paths import TierSpec
from slotwise.redis import RedisConfig
from slotwise.redis._paths import RedisPaths

HOLDERS = "adv-sem:tiers_holders:t"
ALICE = ("alice", None)


def uploads(config: RedisConfig) -> RedisPaths:
    tiers = (TierSpec("user", 1, keyed=True), TierSpec("all", 2, keyed=False))
    return RedisPaths(tiers, name="t", config=config)


def test_a_path_that_comes_as_its_thread_is_interrupted_goes_back(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = uploads(config)
    heartbeat_thread = paths._shared.heartbeat_thread
    run = heartbeat_thread.run

    def interrupted(coroutine: Coroutine[Any, Any, Any]) -> Any:
        run(coroutine)
        raise KeyboardInterrupt  # as a signal would, just when the result has come

    monkeypatch.setattr(heartbeat_thread, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        paths.acquire_sync(ALICE, timeout=None)
    asyncio.run(until(lambda: client.zcard(HOLDERS) == 0, "it was given back"))


def test_a_thread_that_is_interrupted_before_its_release_began_has_released(
    config: RedisConfig, client: redis.Redis
) -> None:
    """By a real signal, which comes before the keeper was told of it."""
    paths = uploads(config)
    held = paths.acquire_sync(ALICE, timeout=None)
    assert client.zcard(HOLDERS) == 1
    heartbeat_thread = paths._shared.heartbeat_thread
    with interrupted_on_its_way_to(heartbeat_thread), pytest.raises(KeyboardInterrupt):
        paths.release_sync(held.acquisition_id)
    asyncio.run(until(lambda: client.zcard(HOLDERS) == 0, "it was released"))
    assert held.acquisition_id not in paths._shared.holders


async def test_a_timeout_before_the_first_connection_stands_is_a_timeout() -> None:
    """The server can be reached, and is slow to say hello."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        config = RedisConfig(f"redis://127.0.0.1:{slow.getsockname()[1]}")
        limits = Tiers(Tier("all", 1), url=config)
        with pytest.raises(AcquireTimeout, match="did not answer") as caught:
            await limits.acquire(timeout=0.05)
    assert isinstance(caught.value, BackendError)  # nobody knows: caught as either


async def test_a_task_whose_path_is_lost_is_cancelled_if_asked_for(
    config: RedisConfig, client: redis.Redis
) -> None:
    limits = Tiers(
        Tier("user", 1, keyed=True),
        Tier("all", 2),
        url=config,
        name="t",
        heartbeat_max_interval=2,
        ping_interval=0.1,
        cancel_task_on_loss=True,
    )
    inside = asyncio.Event()

    async def work() -> None:
        async with limits.cm(user="alice"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait_for(inside.wait(), 30)
    client.flushdb()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()


async def test_a_task_that_outstays_its_ttl_is_cancelled_if_asked_for(config: RedisConfig) -> None:
    limits = Tiers(Tier("all", 1), url=config, name="t", ttl=0.2, cancel_task_after_ttl=True)

    async def work() -> None:
        async with limits.cm():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    async with limits.cm(timeout=30):  # and another task is not
        pass
