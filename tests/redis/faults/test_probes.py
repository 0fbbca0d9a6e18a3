"""How often a silent server is asked whether it lives: a fleet must not add to its trouble."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from tests.redis._server import BUSY, Server, until
from tests.redis.faults._proxy import Freezes
from tests.redis.test_semaphore import in_line

from slotwise.redis import RedisConfig, RedisSemaphore, _silence
from slotwise.redis._net import preparation
from slotwise.redis._net.handshake import Handshake

pytestmark = pytest.mark.soak


class RefusesNewcomers(Freezes):
    """Nothing passes, and new connections are closed at once: as at ``maxclients``."""

    def welcome(self, client: socket.socket) -> socket.socket:
        if not self._requests_flow.is_set():
            raise ConnectionAbortedError
        return client


async def test_a_server_that_refuses_connections_is_asked_with_backoff(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def open_connection(*args: Any, **options: Any) -> Handshake:
        asked.append(time.monotonic())
        return preparation.open_connection(*args, **options)

    monkeypatch.setattr(_silence, "open_connection", open_connection)
    outside = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
    held = await outside.acquire()
    with RefusesNewcomers(server.port) as proxy:
        semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(proxy.url))
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(outside, 1)
        proxy.freeze()
        await until(lambda: asked, "a question whether it lives")
        await asyncio.sleep(3)
        assert 1 <= len(asked) <= 4, "1 s later, 2 s and so on, half of it at the least"
        await outside.release(held)
        thawed_at = time.monotonic()
        proxy.thaw()
        acquired = await asyncio.wait_for(waiting, 30)
        assert time.monotonic() - thawed_at < 1 + BUSY
        await semaphore.release(acquired)
