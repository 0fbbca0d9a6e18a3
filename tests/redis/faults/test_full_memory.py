"""A server at its maxmemory takes no new claims, and costs nobody what it has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.redis._keys import SemaphoreKeys
from tests.redis._server import Server, until

from slotwise import Adaptive, Rate, RateLimit, Tier, Tiers
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._scripts import load

INTERVAL = 1.0


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "redis", "--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
def full(own_server: Server) -> Iterator[redis.Redis]:
    """A client of the server, with which the test fills it."""
    with own_server.client(decode_responses=True) as client:
        yield client
        client.config_set("maxmemory", 0)


def fill(client: redis.Redis) -> None:
    client.config_set("maxmemory", "100kb")
    with pytest.raises(redis.ResponseError, match="used memory"):
        client.set("one", "more")


def latest(client: redis.Redis, key: str) -> float:
    found = client.zrange(key, -1, -1, withscores=True)
    return float(found[0][1]) if found else 0.0


async def several_beats(client: redis.Redis, *keys: str) -> None:
    before = {key: latest(client, key) for key in keys}
    await until(
        lambda: all(latest(client, key) > before[key] + 2 * INTERVAL for key in keys),
        "heartbeats two intervals later",
    )


async def test_a_full_server_loses_no_holder_and_no_place_in_line(
    own_server: Server, full: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    config = RedisConfig(own_server.url)
    semaphore = RedisSemaphore(name="s", value=2, heartbeat_max_interval=INTERVAL, config=config)
    single, double = await semaphore.acquire(), await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire(2))
    await until(lambda: full.zcard("adv-sem:semaphore_waiting:s"), "a waiter")
    fill(full)
    with caplog.at_level(logging.WARNING, "slotwise.redis"):
        await several_beats(
            full, "adv-sem:semaphore_main:s", "adv-sem:semaphore_waiting_heartbeat:s"
        )
    assert not single.lost.is_set()
    assert not double.lost.is_set()
    assert not waiting.done()
    [warning] = warnings(caplog, own_server)
    assert "has no memory left" in warning
    with pytest.raises(BackendError, match="no memory left"):
        await semaphore.acquire()
    assert await semaphore.release(single) is True
    assert await semaphore.release(double) is True
    assert await semaphore.release(await asyncio.wait_for(waiting, 20)) is True


def warnings(caplog: pytest.LogCaptureFixture, server: Server) -> list[str]:
    """Return what was logged about this server; threads of earlier tests may log too."""
    messages = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [each for each in messages if f":{server.port} " in each and "memory" in each]


KINDS: dict[str, Callable[[str, RedisConfig], Any]] = {
    "semaphore": lambda name, config: RedisSemaphore(name=name, value=2, config=config),
    "ttl": lambda name, config: RedisSemaphore(name=name, value=2, ttl=60, config=config),
    "adaptive": lambda name, config: RedisSemaphore(
        name=name, value=Adaptive(min=1, max=4, start=2), config=config
    ),
    "tiers": lambda name, config: Tiers(Tier("user", 2), Tier("all", 2), name=name, url=config),
    "fair": lambda name, config: Tiers(
        *(Tier("user", 2, keyed=True), Tier("all", 2)),
        name=name,
        url=config,
        order="fair",
        fair_by="user",
    ),
    "rate": lambda name, config: RateLimit(name, Rate(9, per=3600, burst=9), url=config),
    "slots and rate": lambda name, config: Tiers(
        *(Tier("all", 2), Tier("calls", rate=Rate(9, per=3600, burst=9))), name=name, url=config
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_full_server_refuses_newcomers_to_new_and_idle_names_and_releases_holders(
    own_server: Server, full: redis.Redis, kind: str
) -> None:
    config, path = RedisConfig(own_server.url), {"user": "ada"} if kind == "fair" else {}
    new, idle, held = (KINDS[kind](name, config) for name in ("new", "idle", "held"))
    used = await idle.acquire(**path)
    if kind != "rate":
        await idle.release(used.acquisition_id)
    holder = await held.acquire(**path)
    fill(full)
    for limit in (new, idle, held):
        with pytest.raises(BackendError, match="no memory left; raise its maxmemory"):
            await limit.try_acquire(**path)
        with pytest.raises(BackendError, match="no memory left; raise its maxmemory"):
            await limit.acquire(timeout=30, **path)
        with pytest.raises(BackendError, match="no memory left; raise its maxmemory"):
            await asyncio.to_thread(limit.acquire_sync, timeout=30, **path)
        with pytest.raises(BackendError, match="no memory left; raise its maxmemory"):
            await asyncio.to_thread(limit.try_acquire_sync, **path)
        together = [limit.acquire(timeout=30, **path) for _ in range(3)]
        for refused in await asyncio.gather(*together, return_exceptions=True):
            assert isinstance(refused, BackendError)
    assert full.keys("*:new") == []
    if kind != "rate":
        assert await held.release(holder.acquisition_id) is True
    full.config_set("maxmemory", 0)
    for limit in (new, idle, held):
        taken = await limit.try_acquire(**path)
        assert taken is not None
        if kind != "rate":
            assert await limit.release(taken.acquisition_id) is True


def test_the_documented_signs_of_life_pass_too(own_server: Server, full: redis.Redis) -> None:
    keys = SemaphoreKeys("adv-sem", "s")

    def run(name: str, given: tuple[bytes, ...], *args: object) -> object:
        return full.eval(load(f"documented/{name}").source, len(given), *given, *map(str, args))

    line = (keys.waiting, keys.waiting_heartbeat)
    for claim_id in ("a", "b"):
        run("queue", line, claim_id, 15, "", "")
    pattern = keys.notification.decode()
    assert run("wake_up_nexts", (keys.main, keys.ttl, *line), 1, 15, "", "", pattern) == 1
    fill(full)
    assert run("acquire", (keys.main, keys.ttl, keys.max), "a", 1, 15, "", "") == [1, 1]
    assert run("ping", (*line, keys.main), "a", 15, "", "") == [0, 1]
    assert run("ping", (*line, keys.main), "b", 15, "", "") == [1, 0]
    with pytest.raises(redis.ResponseError, match="used memory"):
        run("queue", line, "c", 15, "", "")
    assert run("release", (keys.main, keys.ttl, *line), "a") == 1
    assert run("wake_up_nexts", (keys.main, keys.ttl, *line), 1, 15, "", "", pattern) == 1
