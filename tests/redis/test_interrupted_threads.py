"""Threads that are interrupted while they acquire leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import redis
from tests.redis._inside import record_of, shared_of
from tests.redis._server import until

from slotwise.redis import RedisConfig, RedisSemaphore

pytestmark = pytest.mark.soak

MAIN = "adv-sem:semaphore_main:x"


def test_a_slot_that_comes_as_its_thread_is_interrupted_goes_back(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = RedisSemaphore(name="x", value=1, config=config)
    heartbeat_thread = shared_of(semaphore).heartbeat_thread
    run = heartbeat_thread.run

    def interrupted(coroutine: Coroutine[Any, Any, Any]) -> Any:
        run(coroutine)
        raise KeyboardInterrupt  # as a signal would, just when the result has come

    monkeypatch.setattr(heartbeat_thread, "run", interrupted)
    for take in (semaphore.acquire_sync, semaphore.try_acquire_sync):
        with pytest.raises(KeyboardInterrupt):
            take()
        asyncio.run(until(lambda: client.zcard(MAIN) == 0, "it was given back"))
        held = shared_of(semaphore).holders.values()
        assert [each for each in held if each.record is record_of(semaphore)] == []
