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

from slotwise import AcquireTimeout, SemaphoreClosed, Tier, Tiers, ValueConflict
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.limit import AcquisitionContext
from slotwise._core.path_backend import PathBackend
from slotwise._core.paths import KeyStats, Path, TierSpec, TierStats
from slotwise.redis import RedisConfig, RedisSemaphore
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


async def test_all_tiers_are_taken_or_none_and_others_pass_who_lacks_one(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths: PathBackend = uploads(config)
    assert isinstance(paths, RedisBackend)
    alice = await paths.acquire(("alice", None), timeout=None)
    again = await wait_for(paths, "alice", 1)
    bob = await paths.acquire(("bob", None), timeout=5)
    carol = await wait_for(paths, "carol", 2)
    assert await paths.stats() == {
        "user": TierStats(
            2,
            2,
            1,
            {"alice": KeyStats(1, 1, 1), "bob": KeyStats(1, 0, 1), "carol": KeyStats(0, 1, 1)},
        ),
        "all": TierStats(2, 2, 2),
    }
    await paths.release(bob.acquisition_id)
    second = await asyncio.wait_for(carol, 20)
    assert not again.done(), "alice still has her only slot"
    await paths.release(alice.acquisition_id)
    await paths.release(await asyncio.wait_for(again, 20))
    await paths.release(second)
    assert_nothing_left(client)


async def test_waiters_of_one_path_are_served_in_order(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths = uploads(config)
    other = uploads(config)
    held = await paths.acquire(("alice", None), timeout=None)
    order: list[int] = []

    async def wait(n: int) -> None:
        mine = paths if n % 2 else other
        acquired = await mine.acquire(("alice", None), timeout=None, label=f"number {n}")
        order.append(n)
        await mine.release(acquired.acquisition_id)

    tasks = []
    for n in range(20):
        tasks.append(asyncio.create_task(wait(n)))
        await in_line(paths, n + 1)
    await paths.release(held.acquisition_id)
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert order == list(range(20))
    assert_nothing_left(client)


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


async def test_a_slot_number_is_the_lowest_free_one_and_tokens_increase(
    config: RedisConfig,
) -> None:
    paths = uploads(config)
    await operator(config).resize("all", 3)
    a, b, c = [await paths.acquire((user, None), timeout=5) for user in "abc"]
    assert [each.slot_number for each in (a, b, c)] == [1, 2, 3]
    await paths.release(b.acquisition_id)
    await paths.release(a.acquisition_id)
    d = await uploads(config).acquire(("d", None), timeout=5)
    assert d.slot_number == 1
    tokens = [each.fencing_token or 0 for each in (a, b, c, d)]
    assert tokens == sorted(set(tokens))
    for each in (c, d):
        await paths.release(each.acquisition_id)


async def test_a_release_is_of_one_acquisition_and_counts_once(config: RedisConfig) -> None:
    paths = uploads(config)
    a = await paths.acquire(("a", None), timeout=5)
    b = await paths.acquire(("b", None), timeout=5)
    assert await paths.release(a.acquisition_id) is True
    assert await paths.release(a.acquisition_id) is False
    assert await paths.release("sw-nobody-1") is False
    assert (await paths.stats())["all"].active == 1
    await uploads(config).release(b.acquisition_id)
    assert not b.lost.is_set()
    assert (await paths.stats())["all"].active == 0


# --------------------------------------------------------- leaving before the end


async def test_a_time_out_tells_which_tier_was_full(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths = uploads(config)
    a = await paths.acquire(("a", None), timeout=5)
    with pytest.raises(AcquireTimeout, match="in 0 s: user 'a': 1 of 1 held, 0 others"):
        await paths.acquire(("a", None), timeout=0)
    b = await paths.acquire(("b", None), timeout=5)
    waiting = await wait_for(paths, "c", 1)
    with pytest.raises(AcquireTimeout, match=r"in 0\.3 s: all: 2 of 2 held, 1 other waiting"):
        await paths.acquire(("d", None), timeout=0.3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await paths.stats())["all"].waiting == 0
    for each in (a, b):
        await paths.release(each.acquisition_id)
    assert_nothing_left(client)


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


async def test_a_cancelled_head_lets_the_next_of_its_path_be_served(config: RedisConfig) -> None:
    paths = uploads(config)
    held = await paths.acquire(("a", None), timeout=5)
    head = await wait_for(paths, "a", 1)
    second = await wait_for(paths, "a", 2)
    head.cancel()
    await in_line(paths, 1)
    await paths.release(held.acquisition_id)
    await paths.release(await asyncio.wait_for(second, 20))


def worker_of(server: Server) -> Worker:
    tiers = [(tier.name, tier.value, tier.keyed) for tier in USER_AND_ALL]
    return Worker(module="tests.redis._path_worker", url=server.url, name="t", tiers=tiers)


async def test_close_fails_the_waiters_of_this_process_only(
    server: Server, config: RedisConfig, client: redis.Redis
) -> None:
    paths, other = uploads(config), uploads(config)
    held = await paths.acquire(("a", None), timeout=5)
    own = [asyncio.create_task(each.acquire(("a", None), timeout=None)) for each in (paths, other)]
    await in_line(paths, 2)
    failed: list[BaseException] = []

    def wait_in_a_thread() -> None:
        try:
            paths.acquire_sync(("a", None), timeout=None)
        except SemaphoreClosed as error:
            failed.append(error)

    thread = threading.Thread(target=wait_in_a_thread)
    thread.start()
    await in_line(other, 3)
    with worker_of(server) as worker:
        worker.tell("acquire a")
        await in_line(other, 4)
        await paths.close()
        for task in own:
            with pytest.raises(SemaphoreClosed, match="the tiers user, all of 't' are closed"):
                await task
        await asyncio.to_thread(thread.join, 20)
        assert len(failed) == 1
        with pytest.raises(SemaphoreClosed):
            await other.acquire(("b", None), timeout=5)
        await in_line(other, 1)
        await paths.close()
        assert await paths.release(held.acquisition_id) is True
        assert await asyncio.to_thread(worker.hears) == "acquired 1"
        worker.tell("release")
        assert await asyncio.to_thread(worker.hears) == "released True"
    assert_nothing_left(client)


async def test_close_everywhere_refuses_the_whole_fleet_until_reopen(
    server: Server, config: RedisConfig, client: redis.Redis
) -> None:
    paths = uploads(config)
    held = await paths.acquire(("a", None), timeout=5)
    ours = asyncio.create_task(paths.acquire(("a", None), timeout=None))
    await in_line(paths, 1)
    with worker_of(server) as worker:
        worker.tell("acquire a")
        await in_line(paths, 2)
        await operator(config).close_everywhere("for now")
        refused = "the tiers user, all of 't' are closed everywhere: for now"
        assert await asyncio.to_thread(worker.hears) == f"failed SemaphoreClosed {refused}"
        with pytest.raises(SemaphoreClosed, match=refused):
            await ours
        assert await paths.release(held.acquisition_id) is True
        client.expire("adv-sem:tiers_state:t", 60)
        client.hset("adv-sem:tiers_state:t", ".life", 0)
        worker.tell("acquire b")
        assert await asyncio.to_thread(worker.hears) == f"failed SemaphoreClosed {refused}"
        assert client.ttl("adv-sem:tiers_state:t") >= 30 * 24 * 3600 - 60
        with pytest.raises(SemaphoreClosed, match=refused):
            await operator(config).resize("all", 5)
        await operator(config).reopen()
        worker.tell("acquire b")
        assert await asyncio.to_thread(worker.hears) == "acquired 1"
        worker.tell("release")
        assert await asyncio.to_thread(worker.hears) == "released True"
    assert_nothing_left(client)


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


async def test_objects_must_agree_about_tiers_in_use(config: RedisConfig) -> None:
    paths = uploads(config)
    held = await paths.acquire(("a", None), timeout=5)
    larger = RedisBackend(
        (TierSpec("user", 1, keyed=True), TierSpec("all", 9, keyed=False)), name="t", config=config
    )
    with pytest.raises(ValueConflict, match="the tiers of 't' are in use as all=2, not all=9"):
        await larger.acquire(("b", None), timeout=5)
    with pytest.raises(ValueConflict, match="in use as"):
        await RedisBackend(THREE, name="t", config=config).acquire(("a", "b", None), timeout=5)
    with pytest.raises(ValueConflict):
        await operator(config, most=9).resize("all", 3)
    await operator(config).resize("all", 9)
    await larger.release((await larger.acquire(("b", None), timeout=5)).acquisition_id)
    await paths.release(held.acquisition_id)
    three = RedisBackend(THREE, name="t", config=config)
    await three.release((await three.acquire(("a", "b", None), timeout=5)).acquisition_id)
    assert (await three.stats())["all"].value == 4


async def test_a_tier_without_a_limit_counts_and_never_blocks(config: RedisConfig) -> None:
    tiers = (TierSpec("user", 0, keyed=True), TierSpec("all", 0, keyed=False))
    paths = RedisBackend(tiers, name="t", config=config)
    held = [await paths.acquire(("a", None), timeout=30) for _ in range(30)]
    stats = await paths.stats()
    assert (stats["all"].active, stats["all"].value) == (30, 0)
    assert stats["user"].keys["a"] == KeyStats(30, 0, 0)
    for each in held:
        await paths.release(each.acquisition_id)


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


async def test_threads_and_tasks_wait_in_one_line(config: RedisConfig, client: redis.Redis) -> None:
    paths = uploads(config)
    held = await paths.acquire(("a", None), timeout=5)
    order: list[str] = []

    def in_a_thread(name: str) -> None:
        acquired = paths.acquire_sync(("a", None), timeout=20)
        order.append(name)
        assert paths.release_sync(acquired.acquisition_id) is True

    jobs: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()
    for n, name in enumerate(["first", "second", "third"], 1):
        jobs.append(loop.run_in_executor(None, in_a_thread, name))
        await in_line(paths, n)
    stats = await asyncio.to_thread(paths.stats_sync)
    assert stats["user"].keys["a"] == KeyStats(1, 3, 1)
    await asyncio.to_thread(operator(config).resize_sync, "all", 5)
    await paths.release(held.acquisition_id)
    await asyncio.wait_for(asyncio.gather(*jobs), 30)
    assert order == ["first", "second", "third"]
    await asyncio.to_thread(paths.close_sync)
    with pytest.raises(SemaphoreClosed):
        await asyncio.to_thread(paths.acquire_sync, ("a", None), timeout=0)
    assert_nothing_left(client)


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


def awaited_coroutines(task: asyncio.Task[None]) -> int:
    """How many coroutines a task that waits is in, one in the other."""
    depth, awaited = 0, task.get_coro()
    while asyncio.iscoroutine(awaited):
        depth, awaited = depth + 1, awaited.cr_await
    return depth


@pytest.mark.soak
async def test_a_block_of_tiers_waits_in_no_more_coroutines_than_one_of_a_semaphore(
    config: RedisConfig,
) -> None:
    # With thousands of waiters, the garbage collector visits each of them again and again.
    semaphore = RedisSemaphore(1, name="s", config=config)
    tiers = Tiers(Tier("user", 1, keyed=True), Tier("all", 2), name="t", url=config)

    async def enter(block: AcquisitionContext) -> None:
        async with block:
            pass

    async with semaphore.cm(), tiers.cm(user="a"):
        waiting = [
            asyncio.create_task(enter(block)) for block in (semaphore.cm(), tiers.cm(user="a"))
        ]
        for limit in (semaphore, tiers):
            await until(limit.waiters, "it waits")
        alone, several = map(awaited_coroutines, waiting)
    await asyncio.gather(*waiting)
    assert several <= alone
