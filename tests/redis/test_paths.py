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
THREE = (
    TierSpec("tenant", 2, keyed=True),
    TierSpec("model", 3, keyed=True),
    TierSpec("all", 4, keyed=False),
)


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


@pytest.mark.soak
@pytest.mark.parametrize(
    ("tiers", "path"), [(USER_AND_ALL, ("alice", None)), (THREE, ("acme", "large", None))]
)
async def test_a_free_path_is_one_command_to_acquire_and_one_to_release(
    config: RedisConfig,
    monitor: Monitor,
    tiers: tuple[TierSpec, ...],
    path: tuple[str | None, ...],
) -> None:
    # No heartbeat falls into the test.
    name = "one command"
    paths = RedisBackend(tiers, name=name, config=config, heartbeat_max_interval=600)
    await paths.release((await paths.acquire(path, timeout=None)).acquisition_id)
    monitor.commands(name)
    acquired = await paths.acquire(path, timeout=5)
    assert monitor.commands(name) == ["request"]
    assert await paths.release(acquired.acquisition_id) is True
    assert monitor.commands(name) == ["release"]


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


@pytest.mark.soak
async def test_heartbeats_refuse_the_rest_of_very_many_waiters(config: RedisConfig) -> None:
    paths = uploads(config, ping_interval=0.1)
    held = await paths.acquire(("a", None), timeout=5)
    waiters = [asyncio.create_task(paths.acquire(("a", None), timeout=None)) for _ in range(2500)]
    await in_line(paths, 2500)
    await operator(config).close_everywhere()
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {SemaphoreClosed}
    await in_line(paths, 0)
    await paths.release(held.acquisition_id)
    await operator(config).reopen()
    again = await paths.acquire(("a", None), timeout=5)
    await paths.release(again.acquisition_id)


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


async def test_resize_serves_the_whole_fleet_and_one_key(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths, other = uploads(config), uploads(config)
    held = [await paths.acquire((user, None), timeout=5) for user in "ab"]
    c = await wait_for(other, "c", 1)
    await operator(config).resize("all", 3)
    c_id = await asyncio.wait_for(c, 20)
    a = await wait_for(other, "a", 1)
    await operator(config).resize("all", 4)
    assert not a.done()
    await operator(config).resize("user", 2, "a")
    a_id = await asyncio.wait_for(a, 20)
    stats = await other.stats()
    assert stats["all"].value == 4
    assert stats["user"].value == 1
    assert stats["user"].keys["a"] == KeyStats(2, 0, 2)
    await operator(config).resize("all", 1)
    ids = [*(each.acquisition_id for each in held), c_id, a_id]
    for each in ids[:3]:
        assert await other.release(each) is True
        with pytest.raises(AcquireTimeout):
            await other.acquire(("z", None), timeout=0)
    await other.release(ids[3])
    await other.release((await other.acquire(("z", None), timeout=0)).acquisition_id)
    await operator(config).resize("user", 0)
    many = [await other.acquire(("y", None), timeout=0) for _ in range(1)]
    assert (await other.stats())["user"].value == 0
    await other.release(many[0].acquisition_id)
    # A changed value is remembered, and nothing else.
    assert nodes(client) == {"0:a": "0 0 2 - 0"}
    assert client.pttl("adv-sem:tiers_state:t") > 3600 * 1000


# ------------------------------------------------------------------- idle keys


async def test_idle_keys_are_remembered_here_until_they_are_forgotten(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths = uploads(config)
    busy = await paths.acquire(("busy", None), timeout=5)
    for user in "abcd":
        await paths.release((await paths.acquire((user, None), timeout=5)).acquisition_id)
    with pytest.raises(AcquireTimeout):
        await paths.acquire(("busy", None), timeout=0)
    assert set((await paths.stats())["user"].keys) == {"busy", *"abcd"}
    assert set(nodes(client)) == {"0:busy", "1:"}
    assert paths.forget_idle("user", 60.0) == 0
    assert paths.forget_idle("user", 60.0, keep_at_most=2) == 2
    assert set((await paths.stats())["user"].keys) == {"busy", *"cd"}
    assert paths.forget_idle("user", 0.0) == 2
    assert paths.forget_idle("user", 0.0) == 0, "a busy one stays"
    await paths.release(busy.acquisition_id)
    assert paths.forget_idle("user", 0.0) == 1


# --------------------------------------------------------------------- threads


# ------------------------------------------------------------------- many of them


@pytest.mark.soak
async def test_later_calls_continue_what_one_call_cannot_finish(
    config: RedisConfig, client: redis.Redis
) -> None:
    """More heads to look at than one call examines: all are served without a heartbeat."""
    paths = RedisBackend(
        (TierSpec("user", 1, keyed=True), TierSpec("all", 1, keyed=False)),
        name="t",
        config=config,
        heartbeat_max_interval=600,
    )
    held = await paths.acquire(("nobody", None), timeout=5)
    waiting = [
        asyncio.create_task(paths.acquire((f"user {n}", None), timeout=None)) for n in range(300)
    ]
    await in_line(paths, 300)
    await operator(config, most=1).resize("all", 0)
    acquired = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    for each in [held, *acquired]:
        await paths.release(each.acquisition_id)
    assert_nothing_left(client)


async def test_two_connections_serve_many_waiters(config: RedisConfig, client: redis.Redis) -> None:
    before = len(client.client_list())
    paths = uploads(config)
    held = [await paths.acquire((user, None), timeout=5) for user in "ab"]
    waiting = [
        asyncio.create_task(paths.acquire((f"user {n}", None), timeout=None)) for n in range(200)
    ]
    await in_line(paths, 200)
    assert len(client.client_list()) <= before + 3
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for each in held:
        await paths.release(each.acquisition_id)
    assert_nothing_left(client)


@pytest.mark.soak
async def test_statistics_of_thousands_of_keys_come_in_several_looks(config: RedisConfig) -> None:
    tiers = (TierSpec("user", 1, keyed=True), TierSpec("all", 0, keyed=False))
    # A busy machine may need long for all of them.
    patient = config.with_options(cleanup_timeout=90)
    paths = RedisBackend(tiers, name="t", heartbeat_max_interval=120, config=patient)
    users = [f"user {n}" for n in range(3000)]
    held = await asyncio.gather(*(paths.acquire((user, None), timeout=90) for user in users))
    stats = await paths.stats()
    assert stats["all"].active == 3000
    assert stats["user"].keys == dict.fromkeys(users, KeyStats(1, 0, 1))
    await asyncio.gather(*(paths.release(each.acquisition_id) for each in held))
    assert (await paths.stats())["all"].active == 0
