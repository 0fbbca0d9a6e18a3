"""Connections that break, scripts that are forgotten, subscriptions that are cut."""

from __future__ import annotations

import asyncio
import math

import pytest
import redis
from tests.redis._inside import shared_of
from tests.redis._server import Server, until
from tests.redis.faults._proxy import (
    CutsAfterReply,
    Freezes,
    GoesSilent,
    LosesReply,
    LosesRequest,
    Proxy,
)
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._heartbeat_thread import HeartbeatThread

FAILURES = [LosesRequest, LosesReply, CutsAfterReply]


@pytest.mark.parametrize("failure", FAILURES)
async def test_an_acquire_and_a_release_survive_a_cut_connection(
    server: Server, client: redis.Redis, failure: type[Proxy]
) -> None:
    with failure(server.port) as proxy:
        semaphore = RedisSemaphore(name="s", value=2, config=RedisConfig(proxy.url))
        kept = await semaphore.acquire()
        proxy.break_next.set()
        acquired = await asyncio.wait_for(semaphore.acquire(), 20)
        await until(proxy.broken.is_set, "the cut")
        assert {kept.slot_number, acquired.slot_number} == {1, 2}
        assert (await semaphore.stats()).acquired_slots == 2
        proxy.break_again()
        assert await asyncio.wait_for(semaphore.release(acquired), 20) is True
        await until(proxy.broken.is_set, "the cut")
        assert (await semaphore.stats()).acquired_slots == 1
        assert not kept.lost.is_set()
        await semaphore.release(kept)
        assert_nothing_left(client)


@pytest.mark.parametrize("failure", FAILURES)
async def test_waiters_keep_their_places_over_a_cut_connection(
    server: Server, client: redis.Redis, failure: type[Proxy]
) -> None:
    with failure(server.port) as proxy:
        semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(proxy.url))
        outside = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
        held = await outside.acquire()
        order: list[int] = []

        async def wait(n: int) -> None:
            async with semaphore:
                order.append(n)

        tasks = []
        for n in range(5):
            tasks.append(asyncio.create_task(wait(n)))
            await in_line(outside, n + 1)
        proxy.break_next.set()
        tasks += [asyncio.create_task(wait(n)) for n in range(5, 9)]  # travel together
        await until(proxy.broken.is_set, "the cut")
        await in_line(outside, 9)
        await outside.release(held)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert order == list(range(9))
        assert_nothing_left(client)


async def test_a_grant_made_while_nobody_listened_is_found_after_the_reconnect(
    server: Server, client: redis.Redis
) -> None:
    with Proxy(server.port) as proxy:
        semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(proxy.url))
        outside = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
        held = await outside.acquire()
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(outside, 1)
        # Cut every connection of ours, and hand the slot over before they are back.
        ours = [each for each in client.client_list() if each["sub"] == "1"]
        pipe = client.pipeline(transaction=True)
        for each in ours:
            pipe.client_kill_filter(_id=each["id"])
        pipe.execute()
        await outside.release(held)
        await semaphore.release(await asyncio.wait_for(waiting, 20))
        assert_nothing_left(client)


async def test_cancelling_while_the_connection_is_cut_leaves_nothing(
    server: Server, client: redis.Redis
) -> None:
    for failure in FAILURES:
        with failure(server.port) as proxy:
            semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(proxy.url))
            await semaphore.release(await semaphore.acquire())
            proxy.break_next.set()
            task = asyncio.create_task(semaphore.acquire())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 20)
            stats = await semaphore.stats()
            assert (stats.acquired_slots, stats.waiting) == (0, 0)
            assert_nothing_left(client)


async def test_a_forgotten_script_lets_nobody_pass(server: Server, client: redis.Redis) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
    order: list[int] = []

    async def work(n: int) -> None:
        async with semaphore.cm(label=str(n)):  # labelled ones travel one by one
            order.append(n)

    for _ in range(5):
        order.clear()
        client.script_flush()
        tasks = []
        for n in range(30):
            tasks.append(asyncio.create_task(work(n)))
            if n % 3 == 0:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert order == list(range(30))
    assert_nothing_left(client)


@pytest.mark.soak
async def test_a_connection_that_goes_silent_costs_no_holder_its_slot(
    server: Server, client: redis.Redis
) -> None:
    """It is given up long before its reply_timeout, while a new one can still be in time."""
    with GoesSilent(server.port) as proxy:
        semaphore = RedisSemaphore(
            name="s",
            value=1,
            heartbeat_max_interval=4,
            ping_interval=0.2,
            config=RedisConfig(proxy.url, reply_timeout=600),
        )
        held = await semaphore.acquire()
        main = "adv-sem:semaphore_main:s"

        def deadline() -> float:
            return client.zscore(main, held.acquisition_id) or 0.0

        before = deadline()
        await until(lambda: deadline() > before, "a heartbeat")
        proxy.vanish()
        last = deadline()
        await until(proxy.lost_something.is_set, "a heartbeat that is never answered")
        await until(lambda: held.lost or deadline() > last + 1, "heartbeats over a new connection")
        assert not held.lost.is_set()
        assert await asyncio.wait_for(asyncio.to_thread(semaphore.release_sync, held), 30)
        assert_nothing_left(client)


@pytest.mark.soak
async def test_requests_do_not_wait_on_a_connection_that_went_silent(
    server: Server, client: redis.Redis
) -> None:
    """The server answers over a new one, so this one is dead, whatever the other times are."""
    with GoesSilent(server.port) as proxy:
        semaphore = RedisSemaphore(
            name="s",
            value=1,
            heartbeat_max_interval=600,
            config=RedisConfig(proxy.url, reply_timeout=600),
        )
        await semaphore.release(await semaphore.acquire())
        proxy.vanish()
        asking = asyncio.create_task(semaphore.acquire())
        held = await asyncio.wait_for(asking, 60)
        assert proxy.lost_something.is_set()
        assert await semaphore.release(held)
        assert_nothing_left(client)


@pytest.mark.soak
@pytest.mark.usefixtures("rare_heartbeats")
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_waiter_notices_that_the_other_end_is_gone_long_before_its_next_heartbeat(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, *, blocking: bool
) -> None:
    """And finds its grant over the new connection, though that of heartbeats is still dead."""
    others = RedisSemaphore(
        1, name="s", heartbeat_max_interval=3000, config=RedisConfig(server.url)
    )
    with GoesSilent(server.port) as proxy:
        config = RedisConfig(proxy.url, reply_timeout=600)
        semaphore = RedisSemaphore(1, name="s", heartbeat_max_interval=3000, config=config)
        held = await others.acquire()
        waiting = asyncio.ensure_future(
            asyncio.to_thread(semaphore.acquire_sync) if blocking else semaphore.acquire()
        )
        await in_line(others, 1)
        monkeypatch.setattr(HeartbeatThread, "heartbeat_soon", lambda _: None)
        proxy.vanish()
        assert await others.release(held)
        assert await semaphore.release(await asyncio.wait_for(waiting, 60))
    assert_nothing_left(client)


@pytest.mark.soak
async def test_a_connection_is_tried_out_only_while_somebody_relies_on_it(
    server: Server,
) -> None:
    semaphore = RedisSemaphore(1, name="s", config=RedisConfig(server.url))
    held = await semaphore.acquire()
    connection = shared_of(semaphore).client().connection_for(None)
    assert connection is not None
    with server.client() as client:

        def tries() -> int:
            return int(client.info("commandstats").get("cmdstat_time", {"calls": 0})["calls"])

        before = tries()
        await until(lambda: tries() >= before + 2, "it is tried out")
        assert await semaphore.release(held)
        await asyncio.sleep(1)
        before = tries()
        await asyncio.sleep(2)
        assert tries() == before
        assert connection.is_quiet()
        assert not connection.closed


@pytest.mark.soak
async def test_a_server_that_is_silent_on_every_connection_is_waited_for(
    server: Server, client: redis.Redis
) -> None:
    with Freezes(server.port) as proxy:
        semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(proxy.url))
        await semaphore.release(await semaphore.acquire())
        connection = shared_of(semaphore).client().connection_for(None)
        assert connection is not None
        proxy.freeze()
        assert connection.silence() == 0, "nothing is due"
        asking = asyncio.create_task(semaphore.acquire())
        await until(lambda: connection.silent_at < math.inf, "silence that is noticed")
        assert connection.silence() > 0.1
        proxy.thaw()
        assert await semaphore.release(await asyncio.wait_for(asking, 30))
        assert shared_of(semaphore).client().connection_for(None) is connection, (
            "over the same connection"
        )
        assert_nothing_left(client)
