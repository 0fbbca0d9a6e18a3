"""Requests and releases of one loop keep their order, sent together or refused for a moment."""

from __future__ import annotations

import asyncio

import pytest
import redis
from tests.redis._client import Worker
from tests.redis._inside import is_refused, record_of, shared_of
from tests.redis._server import Server, until
from tests.redis.faults._proxy import Freezes
from tests.redis.test_semaphore import in_line

from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._scripts import load
from slotwise.tiers import Tier, Tiers

MAIN, WAITING = "adv-sem:semaphore_main:x", "adv-sem:semaphore_waiting:x"


@pytest.mark.soak
async def test_requests_that_linger_are_passed_by_nobody_when_slots_come_free_meanwhile(
    config: RedisConfig, server: Server
) -> None:
    """They travel as one call, find free slots against expectation, and a later one is behind."""
    semaphore = RedisSemaphore(name="x", value=3, config=config)
    order: list[tuple[int | None, str]] = []

    async def work(name: str, label: str | None = None) -> None:
        async with semaphore.cm(label=label) as acquired:
            order.append((acquired.fencing_token, name))

    with Worker(name="x", value=3, config={"url": server.url}) as worker:
        for _ in range(2):
            worker.tell("acquire")
            assert worker.hears().startswith("acquired")
        held = await semaphore.acquire()
        tasks = [asyncio.create_task(work("in line"))]
        await in_line(semaphore, 1)

        async def slots_come_free() -> None:
            """While this loop is in the middle of a tick, and two requests linger."""
            assert len(shared_of(semaphore).client().pending_requests[record_of(semaphore)]) == 2
            for _ in range(2):
                worker.tell("release")
                assert worker.hears() == "released True"

        tasks += [asyncio.create_task(work(name)) for name in ("first", "second")]
        tasks += [asyncio.create_task(slots_come_free())]
        tasks += [asyncio.create_task(work("third", label="asks alone"))]
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        await semaphore.release(held)
    assert [name for _, name in sorted(order)] == ["in line", "first", "second", "third"]


@pytest.mark.soak
async def test_order_is_kept_while_the_server_refuses_everybody_for_a_moment(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="x", value=1, config=config)
    held = await semaphore.acquire()
    client.config_set("min-replicas-to-write", 1)  # NOREPLICAS for all that write
    try:
        first = [asyncio.create_task(semaphore.acquire(label=str(n))) for n in range(3)]
        # Not while they are under way: they could be refused, and later ones not any more.
        await until(lambda: is_refused(semaphore), "a refusal")
    finally:
        client.config_set("min-replicas-to-write", 0)
    later = [asyncio.create_task(semaphore.acquire(label=str(n))) for n in range(3, 6)]
    await until(lambda: client.zcard(WAITING) == 6, "the line")
    assert [each.label for each in await semaphore.waiters()] == list("012345")
    await semaphore.release(held)
    for each in first + later:
        await semaphore.release(await each)


@pytest.mark.soak
async def test_a_release_that_was_refused_at_first_still_tells_what_it_freed(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="x", value=2, config=config)
    held, ended = await semaphore.acquire(), await semaphore.acquire()
    assert await semaphore.release(ended)
    client.config_set("min-replicas-to-write", 1)  # NOREPLICAS for all that write
    try:
        calls = [semaphore.release(held), semaphore.release(ended), semaphore.kick(ended)]
        tasks = [asyncio.create_task(call) for call in calls]
        await until(lambda: is_refused(semaphore), "a refusal")
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert await asyncio.gather(*tasks) == [True, False, False]


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
async def test_a_cancelled_request_that_its_release_overtook_takes_no_slot(
    kind: str, server: Server, client: redis.Redis
) -> None:
    """After SCRIPT FLUSH the request is refused, and another process has the release loaded."""
    with Freezes(server.port) as proxy:
        settings = {"heartbeat_max_interval": 60.0, "ping_interval": 20.0}
        limit: RedisSemaphore | Tiers
        if kind == "semaphore":
            config = RedisConfig(proxy.url)
            limit = RedisSemaphore(name="x", value=1, config=config, **settings)
        else:
            limit = Tiers(Tier("all", 1), name="x", url=proxy.url, **settings)
        held = await limit.acquire()
        client.script_flush()
        client.script_load(load("release").source)

        def calls_of_scripts() -> int:
            return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

        proxy.freeze_replies()
        before = calls_of_scripts()
        cancelled = asyncio.create_task(limit.acquire())
        await until(lambda: calls_of_scripts() >= before + 1, "the request was refused")
        cancelled.cancel()
        await until(lambda: calls_of_scripts() >= before + 2, "the release has overtaken it")
        proxy.thaw()
        await asyncio.wait([cancelled], timeout=30)
        assert cancelled.cancelled()
        assert await limit.release(held)
        async with asyncio.timeout(30):  # and not after the interval
            await limit.release(await limit.acquire())
