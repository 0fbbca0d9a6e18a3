"""How often a silent server is asked whether it lives: a fleet must not add to its trouble."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import pairwise
from typing import Any

import pytest
from tests.redis._server import BUSY, Server, until
from tests.redis.faults._proxy import Freezes
from tests.redis.test_semaphore import in_line

from slotwise.redis import RedisConfig, RedisSemaphore, _server_probe
from slotwise.redis._call_limits import ServerSettings
from slotwise.redis._net import preparation
from slotwise.redis._net.handshake import Handshake
from slotwise.redis._server_probe import ServerProbe

pytestmark = pytest.mark.soak

TICK = 0.1  # how often silent connections ask


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

    monkeypatch.setattr(_server_probe, "open_connection", open_connection)
    outside = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
    held = await outside.acquire()
    with RefusesNewcomers(server.port) as proxy:
        semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(proxy.url))
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(outside, 1)
        proxy.freeze()
        await until(lambda: asked, "a question whether it lives")
        await asyncio.sleep(3)
        assert 2 <= len(asked) <= 6, "0.3, 0.6, 1.2 s later and so on, half of it at the least"
        await outside.release(held)
        thawed_at = time.monotonic()
        proxy.thaw()
        acquired = await asyncio.wait_for(waiting, 30)
        assert time.monotonic() - thawed_at < 1 + BUSY
        await semaphore.release(acquired)


def _asked_at(silences: list[tuple[float, float]], duration: float) -> list[float]:
    """When a server is asked whose connections are silent in these times; each takes 0.05 s."""
    probe = ServerProbe(ServerSettings(RedisConfig()), None, lambda _: None)
    probe._credit_at = 0.0
    asked: list[float] = []
    for step in range(2, round((silences[-1][1]) / TICK)):
        now = step * TICK
        for since, until_ in silences:
            if since + 0.2 <= now < until_ and probe._is_worth_asking(since, now):
                asked.append(now)
                probe._not_before = now + duration + probe._pause
    return asked


def test_one_silence_is_asked_about_ever_less_often() -> None:
    asked = _asked_at([(1.0, 61.0)], duration=0.05)
    pauses = [round(after - before, 3) for before, after in pairwise(asked)]
    assert asked[0] < 1.3
    assert pauses == sorted(pauses)
    assert 4 < pauses[-1] < 6
    assert len(asked) < 20


def test_a_slow_server_is_not_asked_about_every_reply() -> None:
    """Each takes 0.4 s, and the next call follows soon: no two of them are one silence."""
    silences = [(0.7 * n, 0.7 * n + 0.4) for n in range(100)]
    asked = _asked_at(silences, duration=0.05)
    assert len([at for at in asked if at < 3]) == 4, "the first ones are"
    assert len(asked) < 4 + 70 / 2 + 2


def test_a_silence_that_lasts_is_asked_about_within_a_second_on_a_slow_server_too() -> None:
    silences = [(0.7 * n, 0.7 * n + 0.4) for n in range(20)]
    began = silences[-1][1] + 0.1
    asked = _asked_at([*silences, (began, began + 5)], duration=0.05)
    assert next(at for at in asked if at > began) - began < 0.75
