"""Paths when something fails: processes die, connections break, servers forget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests._stdlib import discard
from tests.redis._client import Worker
from tests.redis._inside import shared_of
from tests.redis._server import Server, until
from tests.redis.test_paths import (
    USER_AND_ALL,
    assert_nothing_left,
    in_line,
    uploads,
    wait_for,
)

from slotwise._core.paths import TierSpec
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._backend import RedisBackend

# Of those who die; the others may be late, on a busy machine, and live.
INTERVAL = 1.5


def worker(
    server: Server, tiers: tuple[TierSpec, ...] = USER_AND_ALL, interval: float = INTERVAL
) -> Worker:
    return Worker(
        module="tests.redis._path_worker",
        url=server.url,
        name="t",
        tiers=[(tier.name, tier.value, tier.keyed) for tier in tiers],
        heartbeat_max_interval=interval,
    )


# ------------------------------------------------------------------------- processes


# ---------------------------------------------------------------------- life and loss


async def test_one_heartbeat_keeps_paths_and_semaphores_alive(
    config: RedisConfig, client: redis.Redis
) -> None:
    options = {"heartbeat_max_interval": 10, "ping_interval": 0.3}
    paths = uploads(config, **options)
    semaphore = RedisSemaphore(name="s", value=1, config=config, **options)
    held, also = await paths.acquire(("a", None), timeout=5), await semaphore.acquire()
    waiting = await wait_for(paths, "a", 1)

    def deadline() -> float:
        return float(client.zscore("adv-sem:tiers_holders:t", held.acquisition_id) or 0.0)

    before = deadline()
    await until(lambda: deadline() > before + 0.5, "a later deadline")
    assert not held.lost.is_set()
    assert not also.lost.is_set()
    assert (await paths.stats())["all"].waiting == 1
    await semaphore.release(also)
    await paths.release(held.acquisition_id)
    await paths.release(await asyncio.wait_for(waiting, 20))


async def test_every_key_expires_soon_after_the_last_sign_of_life(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths = uploads(config, ttl=20)
    held = [await paths.acquire((user, None), timeout=5) for user in "ab"]
    waiting = [await wait_for(paths, user, n) for n, user in enumerate("ac", 1)]
    # On a slow machine the names in use have been noted by now; those notes live longer.
    lives = {key: client.pttl(key) for key in client.scan_iter("*:tiers_*")}
    assert len(lives) == 6
    assert all(0 < life <= 2 * 15_000 for life in lives.values()), lives
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for each in held:
        await paths.release(each.acquisition_id)
    assert_nothing_left(client)


# ------------------------------------------------------------------------ connections


# ----------------------------------------------------------------------------- servers


@pytest.fixture
def forgetful_server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "redis") as server:
        yield server


async def line_up(paths: RedisBackend, order: list[int]) -> list[asyncio.Task[None]]:
    async def wait(n: int) -> None:
        acquired = await paths.acquire(("a", None), timeout=None)
        order.append(n)
        await paths.release(acquired.acquisition_id)

    tasks = []
    for n in range(10):
        tasks.append(asyncio.create_task(wait(n)))
        await in_line(paths, n + 1)
    return tasks


async def test_a_wait_in_a_loop_that_was_closed_is_given_back(server: Server) -> None:
    paths = uploads(RedisConfig(server.url), heartbeat_max_interval=600)
    held = await paths.acquire(("a", None), timeout=5)

    def wait_and_vanish() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(paths.acquire(("a", None), timeout=None))
        deadline = time.monotonic() + 20
        while not any(waiter.queued for waiter in list(shared_of(paths).waiters.values())):
            assert time.monotonic() < deadline
            loop.run_until_complete(asyncio.sleep(0.01))
        discard(task)
        loop.close()

    await asyncio.to_thread(wait_and_vanish)
    shared_of(paths).forget_closed_loops()
    await in_line(paths, 0)
    await paths.release(held.acquisition_id)
