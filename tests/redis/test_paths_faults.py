"""Paths when something fails: processes die, connections break, servers forget."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from tests._stdlib import discard, leave
from tests.redis._client import Worker
from tests.redis._inside import shared_of
from tests.redis._server import LOAD, Server, until
from tests.redis.faults._proxy import CutsAfterReply, LosesReply, LosesRequest, Proxy
from tests.redis.test_paths import (
    USER_AND_ALL,
    assert_nothing_left,
    in_line,
    operator,
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


async def test_a_killed_holder_frees_all_its_tiers(server: Server, client: redis.Redis) -> None:
    paths = uploads(RedisConfig(server.url))
    with worker(server) as doomed:
        doomed.tell("acquire a")
        assert doomed.hears() == "acquired 1"
        other = await paths.acquire(("b", None), timeout=5)
        for_user, for_all = await wait_for(paths, "a", 1), await wait_for(paths, "c", 2)
        doomed.kill()
        a = await asyncio.wait_for(for_user, 20)
        assert not for_all.done()
        await paths.release(other.acquisition_id)
        c = await asyncio.wait_for(for_all, 20)
    for each in (a, c):
        await paths.release(each)
    assert_nothing_left(client)


async def test_a_killed_waiter_blocks_nobody_behind_it(server: Server, client: redis.Redis) -> None:
    paths = uploads(RedisConfig(server.url))
    held = await paths.acquire(("a", None), timeout=5)
    with worker(server) as doomed:
        doomed.tell("acquire a")
        await in_line(paths, 1)
        behind = await wait_for(paths, "a", 2)
        doomed.kill()
        await paths.release(held.acquisition_id)
        # Granted to the dead one, perhaps; its silence hands it on.
        await paths.release(await asyncio.wait_for(behind, 20))
    assert_nothing_left(client)


@pytest.mark.soak
async def test_a_dead_process_is_noticed_by_newcomers_who_do_not_wait(server: Server) -> None:
    paths = uploads(RedisConfig(server.url))
    with worker(server) as doomed:
        doomed.tell("acquire a")
        doomed.hears()
        doomed.kill()

    async def free() -> bool:
        return (await paths.stats())["user"].active == 0

    await until(free, "the silence is over")
    await paths.release((await paths.acquire(("a", None), timeout=0)).acquisition_id)


@pytest.mark.soak
async def test_a_stopped_holder_learns_of_its_loss_when_it_wakes(server: Server) -> None:
    paths = uploads(RedisConfig(server.url))
    with worker(server) as sleeper:
        sleeper.tell("acquire a")
        sleeper.hears()
        sleeper.signal(signal.SIGSTOP)
        acquired = await asyncio.wait_for(paths.acquire(("a", None), timeout=None), 20)
        assert sleeper.says_nothing()
        sleeper.signal(signal.SIGCONT)
        assert (await asyncio.to_thread(sleeper.hears)).startswith("lost")
        assert not acquired.lost.is_set()
    await paths.release(acquired.acquisition_id)


async def test_a_release_in_one_process_wakes_a_waiter_in_another(server: Server) -> None:
    # Heartbeats are far apart: only the message can wake it in time.
    paths = uploads(RedisConfig(server.url), heartbeat_max_interval=600)
    held = await paths.acquire(("a", None), timeout=5)
    with worker(server, interval=600) as other:
        other.tell("acquire a")
        await in_line(paths, 1)
        await paths.release(held.acquisition_id)
        assert await asyncio.to_thread(other.hears) == "acquired 1"
        waiting = await wait_for(paths, "a", 1)
        other.tell("release")
        await paths.release(await asyncio.wait_for(waiting, 20))


@pytest.mark.soak
async def test_no_tier_is_exceeded_by_four_processes(server: Server, client: redis.Redis) -> None:
    tiers = (
        TierSpec("user", 1, keyed=True),
        TierSpec("model", 2, keyed=True),
        TierSpec("all", 3, keyed=False),
    )
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(server, tiers, interval=20)) for _ in range(4)]
        for seed, each in enumerate(workers):
            each.tell(f"storm {seed}")
        words = [
            (await asyncio.to_thread(each.hears, within=60 * LOAD)).split() for each in workers
        ]
    assert [word for word, _, _ in words] == ["calm"] * 4
    assert max(int(worst) for _, _, worst in words) == 0, "full at times, and never more"
    assert sum(int(taken) for _, taken, _ in words) > 200
    with server.client(db=1) as counts:
        assert {int(counts.get(key)) for key in counts.scan_iter()} == {0}
    assert_nothing_left(client)


async def test_a_forked_child_starts_anew(server: Server, client: redis.Redis) -> None:
    paths = uploads(RedisConfig(server.url))
    held = await asyncio.to_thread(paths.acquire_sync, ("a", None), timeout=5)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        report = "nothing"
        try:
            import threading

            def work() -> str:
                if paths.release_sync(held.acquisition_id):
                    return "released its parent's slots"
                own = paths.acquire_sync(("b", None), timeout=10)
                active = paths.stats_sync()["all"].active
                return f"{own.slot_number} {active} {paths.release_sync(own.acquisition_id)}"

            answers: list[str] = []
            # A thread without the parent's event loop, which was copied with it.
            thread = threading.Thread(target=lambda: answers.append(work()))
            thread.start()
            thread.join(20)
            report = answers[0]
        except BaseException as error:
            report = repr(error)
        finally:
            os.write(writing, report.encode())
            leave()
    os.close(writing)
    report = await asyncio.to_thread(os.read, reading, 1000)
    os.close(reading)
    await asyncio.to_thread(os.waitpid, child, 0)
    assert report == b"2 2 True"
    assert await paths.release(held.acquisition_id) is True
    assert_nothing_left(client)


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


async def test_the_ttl_ends_a_hold_and_serves_who_waits(
    config: RedisConfig, client: redis.Redis
) -> None:
    paths = uploads(config, ttl=0.3)
    first = await paths.acquire(("a", None), timeout=5)
    second = await paths.acquire(("a", None), timeout=20)
    await asyncio.wait_for(first.lost, 20)
    assert "ttl" in (first.lost.reason or "")
    assert await paths.release(first.acquisition_id) is False
    await paths.release(second.acquisition_id)
    assert_nothing_left(client)


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

FAILURES = [LosesRequest, LosesReply, CutsAfterReply]


@pytest.mark.parametrize("failure", FAILURES)
async def test_an_acquire_and_a_release_survive_a_cut_connection(
    server: Server, client: redis.Redis, failure: type[Proxy]
) -> None:
    with failure(server.port) as proxy:
        paths = uploads(RedisConfig(proxy.url))
        kept = await paths.acquire(("a", None), timeout=5)
        proxy.break_next.set()
        acquired = await paths.acquire(("b", None), timeout=20)
        await until(proxy.broken.is_set, "the cut")
        assert (await paths.stats())["all"].active == 2
        proxy.break_again()
        assert await asyncio.wait_for(paths.release(acquired.acquisition_id), 20) is True
        await until(proxy.broken.is_set, "the cut")
        assert (await paths.stats())["all"].active == 1
        assert not kept.lost.is_set()
        await paths.release(kept.acquisition_id)
        assert_nothing_left(client)


@pytest.mark.parametrize("failure", FAILURES)
async def test_waiters_keep_their_places_over_a_cut_connection(
    server: Server, client: redis.Redis, failure: type[Proxy]
) -> None:
    with failure(server.port) as proxy:
        paths, outside = uploads(RedisConfig(proxy.url)), uploads(RedisConfig(server.url))
        held = await outside.acquire(("a", None), timeout=5)
        order: list[int] = []

        async def wait(n: int) -> None:
            acquired = await paths.acquire(("a", None), timeout=None)
            order.append(n)
            await paths.release(acquired.acquisition_id)

        tasks = []
        for n in range(4):
            tasks.append(asyncio.create_task(wait(n)))
            await in_line(outside, n + 1)
        proxy.break_next.set()
        tasks += [asyncio.create_task(wait(n)) for n in range(4, 8)]  # travel together
        await until(proxy.broken.is_set, "the cut")
        await in_line(outside, 8)
        await outside.release(held.acquisition_id)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert order == list(range(8))
        assert_nothing_left(client)


async def test_cancelling_while_the_connection_is_cut_leaves_nothing(
    server: Server, client: redis.Redis
) -> None:
    for failure in FAILURES:
        with failure(server.port) as proxy:
            paths = uploads(RedisConfig(proxy.url))
            await paths.release((await paths.acquire(("a", None), timeout=5)).acquisition_id)
            proxy.break_next.set()
            task = asyncio.create_task(paths.acquire(("a", None), timeout=None))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 20)
            stats = await paths.stats()
            assert (stats["all"].active, stats["all"].waiting) == (0, 0)
            assert_nothing_left(client)


async def test_a_grant_made_while_nobody_listened_is_found(
    server: Server, client: redis.Redis
) -> None:
    with Proxy(server.port) as proxy:
        paths, outside = uploads(RedisConfig(proxy.url)), uploads(RedisConfig(server.url))
        held = await outside.acquire(("a", None), timeout=5)
        waiting = asyncio.create_task(paths.acquire(("a", None), timeout=None))
        await in_line(outside, 1)
        pipe = client.pipeline(transaction=True)
        for each in client.client_list():
            if each["sub"] == "1":
                pipe.client_kill_filter(_id=each["id"])
        pipe.execute()
        await outside.release(held.acquisition_id)
        acquired = await asyncio.wait_for(waiting, 20)
        await paths.release(acquired.acquisition_id)
        assert_nothing_left(client)


async def test_forgotten_scripts_are_sent_again(config: RedisConfig, client: redis.Redis) -> None:
    paths = uploads(config)
    order: list[int] = []

    async def work(n: int) -> None:
        acquired = await paths.acquire(("a", None), timeout=20)
        order.append(n)
        await paths.release(acquired.acquisition_id)

    for _ in range(3):
        order.clear()
        client.script_flush()
        await asyncio.gather(*(work(n) for n in range(12)))
        assert order == list(range(12))
    client.script_flush()
    await operator(config).resize("all", 5)
    client.script_flush()
    assert (await paths.stats())["all"].value == 5


# ----------------------------------------------------------------------------- servers


@pytest.fixture
def durable_server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


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


async def test_a_restart_with_its_data_keeps_holders_and_the_line(durable_server: Server) -> None:
    paths = uploads(RedisConfig(durable_server.url), heartbeat_max_interval=10)
    held = await paths.acquire(("a", None), timeout=5)
    order: list[int] = []
    tasks = await line_up(paths, order)
    await asyncio.to_thread(durable_server.stop)
    await asyncio.to_thread(durable_server.start)
    assert await paths.release(held.acquisition_id) is True
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert order == list(range(10))
    assert not held.lost.is_set()
    with durable_server.client(decode_responses=True) as client:
        assert_nothing_left(client)


async def test_a_restart_without_its_data_tells_holders_and_lines_up_again(
    forgetful_server: Server,
) -> None:
    server = forgetful_server
    paths = uploads(RedisConfig(server.url), heartbeat_max_interval=10)
    held = await paths.acquire(("a", None), timeout=5)
    order: list[int] = []
    tasks = await line_up(paths, order)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(held.lost, 20)
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert sorted(order) == list(range(10))
    assert await paths.release(held.acquisition_id) is False
    with server.client(decode_responses=True) as client:
        assert_nothing_left(client)


@pytest.mark.soak
async def test_a_server_that_is_gone_for_longer_than_the_interval_costs_the_hold(
    forgetful_server: Server,
) -> None:
    paths = uploads(RedisConfig(forgetful_server.url), heartbeat_max_interval=1)
    held = await paths.acquire(("a", None), timeout=5)
    await asyncio.to_thread(forgetful_server.kill)
    await asyncio.wait_for(held.lost, 20)
    assert "no heartbeat got through" in (held.lost.reason or "")


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
    await in_line(paths, 1)
    shared_of(paths).forget_closed_loops()
    await in_line(paths, 0)
    await paths.release(held.acquisition_id)
