"""What RedisBackend does on a real server: taking, waiting, leaving, and what stays behind."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest
import redis
from tests.redis._client import Worker
from tests.redis._server import Server, until

from slotwise import AcquireTimeout, SemaphoreClosed, Tier, Tiers
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.paths import KeyStats, Path, TierSpec
from slotwise.redis import RedisConfig
from slotwise.redis._backend import RedisBackend
from slotwise.redis._scripts import OURS, load

USER_AND_ALL = (TierSpec("user", 1, keyed=True), TierSpec("all", 2, keyed=False))


def uploads(config: RedisConfig, **options: object) -> RedisBackend:
    return RedisBackend(USER_AND_ALL, name="t", config=config, **options)  # type: ignore[arg-type]


def operator(config: RedisConfig, most: int = 2) -> Tiers:
    """Who changes them for everybody."""
    return Tiers(Tier("user", 1, keyed=True), Tier("all", most), name="t", url=config)


def assert_nothing_left(client: redis.Redis) -> None:
    """Nothing but facts, which expire."""
    for key in client.scan_iter():
        assert client.pttl(key) > 0, f"{key} would stay forever"
        if key == "adv-sem:names":
            continue
        assert key.startswith("adv-sem:tiers_state:"), f"{key} was left behind"
        assert [field for field in client.hkeys(key) if not field.startswith(".")] == []


def nodes(client: redis.Redis) -> dict[str, str]:
    """What the server knows of single keys of the tiers."""
    state = client.hgetall("adv-sem:tiers_state:t")
    return {field: text for field, text in state.items() if field[0].isdigit()}


async def in_line(paths: RedisBackend, count: int) -> None:
    async def enough() -> bool:
        return (await paths.stats())["all"].waiting == count

    await until(enough, f"{count} in line")


async def wait_for(paths: RedisBackend, user: str, count: int) -> asyncio.Task[str]:
    """A task that waits for a path, the ``count``-th to wait; it gives its id."""

    async def acquire() -> str:
        return (await paths.acquire((user, None), timeout=None)).acquisition_id

    task = asyncio.create_task(acquire())
    await in_line(paths, count)
    return task


# --------------------------------------------------------------------- commands


_NAME_OF = {load(name).sha.decode(): name for name in OURS}


class Monitor:
    """The commands that clients send, but for those that try or open connections.

    On a slow machine the server is probed over another one while it doesn't reply. And the name is
    noted when it has been used for 0.3 s.
    """

    def __init__(self, server: Server, client: redis.Redis) -> None:
        self._client = server.client(decode_responses=True)
        self._monitor = self._client.monitor().__enter__()
        self._marker = client

    def commands(self, name: str) -> list[str]:
        """Return what was sent since the last call: scripts for ``name``, and other commands."""
        self._marker.echo("a mark of the test")
        seen, opening = [], set()
        while True:
            command = self._monitor.next_command()
            if command["command"] == "ECHO a mark of the test":
                return seen
            word = command["command"].split(" ")[0]
            if word == "HELLO":
                opening.add(command["client_port"])
            is_opening = command["client_port"] in opening and not word.startswith("EVAL")
            is_of_a_client = command["client_type"] != "lua" and word != "TIME"
            if word == "EVALSHA":
                word = _NAME_OF[command["command"].split(" ")[1]]
                is_of_a_client = name in command["command"] and word != "names/note"
            if is_of_a_client and not is_opening:
                seen.append(word)

    def close(self) -> None:
        self._monitor.__exit__(None, None, None)
        self._client.close()


@pytest.fixture
def monitor(server: Server, client: redis.Redis) -> Iterator[Monitor]:
    monitor = Monitor(server, client)
    yield monitor
    monitor.close()


# ---------------------------------------------------------------------- serving


async def test_any_str_is_a_key(config: RedisConfig, client: redis.Redis) -> None:
    paths = uploads(config)
    strange = ["", " ", "{a}", "}", "a:b,c", "a\0b", "\ud800", "\U0001f600", "!", ">x", ".", "0:"]
    await operator(config).resize("all", 0)
    held = [await paths.acquire((user, None), timeout=5) for user in strange]
    for user in strange:
        with pytest.raises(AcquireTimeout, match=re.escape(f": user {user!r}: 1 of 1 held")):
            await paths.acquire((user, None), timeout=0)
    shown = (await paths.stats())["user"].keys
    assert shown == {user: KeyStats(1, 0, 1) for user in strange}
    for acquired in held:
        assert await paths.release(acquired.acquisition_id) is True
    assert_nothing_left(client)


# --------------------------------------------------------- leaving before the end


@pytest.mark.soak
async def test_cancelling_at_any_moment_leaves_nothing(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths = uploads(config)
    for ticks in range(12):
        held = [await paths.acquire((user, None), timeout=5) for user in "ab"]
        task = asyncio.create_task(paths.acquire(("a", None), timeout=None))
        for _ in range(ticks):
            await asyncio.sleep(0)
        releases = [asyncio.create_task(paths.release(each.acquisition_id)) for each in held]
        for _ in range(ticks % 4):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.gather(*releases)
        stats = await paths.stats()
        assert (stats["all"].active, stats["all"].waiting) == (0, 0)
        assert_nothing_left(client)


def worker_of(server: Server) -> Worker:
    tiers = [(tier.name, tier.value, tier.keyed) for tier in USER_AND_ALL]
    return Worker(module="tests.redis._path_worker", url=server.url, name="t", tiers=tiers)


async def test_a_close_by_another_thread_that_does_not_see_a_newcomer_refuses_it_all_the_same(
    config: RedisConfig,
) -> None:
    paths, other = uploads(config), uploads(config)

    class ClosedMeanwhile(IdleKeys):
        """Between the newcomer's look whether it is closed, and its request."""

        def enter(self, path: Path) -> None:
            super().enter(path)
            thread = threading.Thread(target=paths.close_sync)
            thread.start()
            thread.join(20)
            assert not thread.is_alive(), "it waits for this loop, which has no waiters"

    held = [await paths.acquire((user, None), timeout=5) for user in "ab"]
    paths._idle = ClosedMeanwhile(USER_AND_ALL)
    with pytest.raises(SemaphoreClosed):
        await asyncio.wait_for(paths.acquire(("a", None), timeout=None), 20)
    await in_line(other, 0)
    for each in held:
        await paths.release(each.acquisition_id)
    assert (await other.stats())["all"].active == 0


# ------------------------------------------------------------------ resizing


# ------------------------------------------------------------------- idle keys


# --------------------------------------------------------------------- threads


# ------------------------------------------------------------------- many of them
