"""Thousands of holders and waiters are closed, resized and listed in calls of bounded cost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
from tests.redis._eval import evaluate
from tests.redis._server import until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise import SemaphoreClosed, Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._scripts import load

KEYS = SemaphoreKeys("adv-sem", "s")
# What lua/base/base.lua calls AT_ONCE and PAGE.
AT_ONCE, PAGE = 100, 500


def run(client: redis.Redis, name: str, *args: object) -> Any:
    return evaluate(client, load(name).source, len(KEYS.all), *KEYS.all, "", *map(str, args))


def queue(client: redis.Redis, count: int, *, slots: int = 1) -> list[str]:
    """Fill a semaphore of 3 slots and queue that many behind that, in one write."""
    args = ("sw-x-0*3", 3, 60, "", "wait", "", "host 1 ", "", "")
    assert run(client, "semaphore/request", *args)[0] == "granted"
    several = "" if slots == 1 else f"*{slots}"
    ids = [f"sw-x-{n}{several}" for n in range(1, count + 1)]
    now = time.time()
    tickets = [f"{now + n / 1000:.6f}" for n in range(count)]
    claims = (f"60 - {ticket} 0 0 0 host 1 " for ticket in tickets)
    client.zadd(KEYS.waiting, dict(zip(ids, map(float, tickets), strict=True)))
    client.zadd(KEYS.waiting_heartbeat, dict.fromkeys(ids, now + 60))
    client.hset(KEYS.state, mapping=dict(zip(ids, claims, strict=True)))
    for key in (KEYS.waiting, KEYS.waiting_heartbeat):
        client.expire(key, 60)
    return ids


def commands(client: redis.Redis) -> int:
    """How many commands the server has run, those of scripts too."""
    return sum(each["calls"] for each in client.info("commandstats").values())


def test_a_heartbeat_needs_few_commands_whatever_became_of_those_it_names(
    client: redis.Redis,
) -> None:
    now, count = time.time(), 1000
    ids = [f"sw-x-{n}" for n in range(count)]
    run(client, "semaphore/request", "sw-x-first", 2 * count, 60, "", "try", "", "host 1 ", "", "")

    def heartbeat(*named: object) -> tuple[list[str], int]:
        before = commands(client)
        [[_, *outcome]] = run(client, "semaphore/heartbeat", "x", 60, "", *named)
        return outcome, commands(client) - before

    client.zadd(KEYS.ttl, dict.fromkeys(ids, now + 60))
    outcome, needed = heartbeat(count, 0, *ids)
    assert outcome == [f"lost {each}" for each in ids]
    assert needed < 100
    assert client.zcard(KEYS.ttl) == 0
    # Waiters that were granted without having heard of it.
    claims = {each: f"60 - {now:.6f} {now:.6f} {n + 2} {n} host 1 " for n, each in enumerate(ids)}
    client.hset(KEYS.state, mapping=claims)
    client.zadd(KEYS.main, dict.fromkeys(ids, now + 20))
    outcome, needed = heartbeat(0, count, *ids)
    assert outcome == [f"granted {each} {n + 2} {n}" for n, each in enumerate(ids)]
    assert needed < 100
    assert client.zcount(KEYS.main, now + 50, "inf") == count + 1, "they are renewed"


def test_one_call_of_close_refuses_a_bounded_number_and_heartbeats_the_rest(
    client: redis.Redis,
) -> None:
    ids = queue(client, 3 * AT_ONCE)
    told = run(client, "semaphore/close", "x", 3, "moved")
    assert told == [*(f"closed {each} moved" for each in ids[:AT_ONCE]), "unfinished"]
    # One that is asked again meanwhile is refused, and leaves the queue.
    args = (ids[-1], 3, 60, "", "wait", "again", "host 1 ", "", "")
    assert run(client, "semaphore/request", *args) == ["closed", "moved"]
    [[due, *second]] = run(client, "semaphore/heartbeat", "x", 60, "", 0, 0)
    assert (due, second) == (0, [f"closed {each} moved" for each in ids[AT_ONCE : 2 * AT_ONCE]])
    [[due, *third]] = run(client, "semaphore/heartbeat", "x", 60, "", 0, 0)
    assert (due, third) == (-1, [f"closed {each} moved" for each in ids[2 * AT_ONCE : -1]])
    assert client.hkeys(KEYS.state).count("sw-x-0*3") == 1
    assert not any(client.hexists(KEYS.state, each) for each in ids)


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
async def test_closing_refuses_more_waiters_than_one_call_does(
    config: RedisConfig, client: redis.Redis, kind: str
) -> None:
    limit: Any
    if kind == "tiers":
        tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 1), name="t", url=config)
        limit = tiers.at(tenant="a")
    else:
        tiers = limit = RedisSemaphore(1, name="t", config=config)
    held = await limit.acquire()
    count = 2 * AT_ONCE + 50
    waiting = [asyncio.create_task(limit.acquire()) for _ in range(count)]

    async def all_wait() -> bool:
        return (await limit.stats()).waiting == count

    await until(all_wait, "all of them in the queue")
    await tiers.close_everywhere("for good")
    assert (await limit.stats()).waiting == 0, "it returns when everybody has been refused"
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
    assert {(type(each), getattr(each, "reason", None)) for each in ended} == {
        (SemaphoreClosed, "for good")
    }
    assert await limit.release(held) is True
    await tiers.reopen()


def test_one_call_of_resize_refuses_a_bounded_number_and_says_where_to_go_on(
    client: redis.Redis,
) -> None:
    ids = queue(client, PAGE + AT_ONCE, slots=3)
    args = ("x", 60, "", 3, 2, 60)
    refused: list[str] = []
    go_on = ""
    while True:
        word, value, go_on, *told = run(client, "semaphore/resize", *args, go_on)
        assert (word, value) == ("resized", 2)
        assert len(told) <= AT_ONCE
        refused += told
        if not go_on:
            break
    assert refused == [f"refused {each} 2" for each in ids]
    assert client.exists(KEYS.waiting) == 0


def test_a_resize_that_goes_on_does_not_undo_a_later_one(client: redis.Redis) -> None:
    ids = queue(client, 2 * AT_ONCE, slots=3)
    _, _, go_on, *_ = run(client, "semaphore/resize", "x", 60, "", 3, 2, 60, "")
    run(client, "semaphore/resize", "x", 60, "", 3, 5, 60, "")
    assert run(client, "semaphore/resize", "x", 60, "", 3, 2, 60, go_on)[:3] == ["resized", 5, ""]
    assert client.zrange(KEYS.waiting, 0, -1) == ids[AT_ONCE:]


def test_one_that_a_resize_did_not_come_to_is_refused_at_the_head_of_the_queue(
    client: redis.Redis,
) -> None:
    ids = queue(client, AT_ONCE + 1, slots=3)
    run(client, "semaphore/resize", "x", 60, "", 3, 2, 60, "")  # and nobody looks on
    reply = run(client, "semaphore/release", "sw-x-0*3", "x", 60, "", "")
    assert reply == [3, 0, 0, f"refused {ids[-1]} 2"]


async def test_shrinking_refuses_all_that_ask_for_too_much(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(3, name="s", config=config)
    held = await semaphore.acquire(3)
    wide = [asyncio.create_task(semaphore.acquire(3)) for _ in range(AT_ONCE + 50)]
    narrow = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, AT_ONCE + 51)
    await semaphore.resize(2)
    ended = await asyncio.wait_for(asyncio.gather(*wide, return_exceptions=True), 20)
    assert {type(each) for each in ended} == {ValueError}
    await semaphore.release(held)
    await semaphore.release(await narrow)
    assert_nothing_left(client)


async def test_long_lists_come_in_parts_and_are_complete(
    config: RedisConfig, client: redis.Redis
) -> None:
    ids = queue(client, 2 * PAGE + 50)
    now = time.time()
    holders = [f"sw-x-h{n}" for n in range(2 * PAGE)]
    client.zadd(KEYS.main, dict.fromkeys(holders, now + 60))
    for what in ("holders", "waiters"):
        reply = run(client, "semaphore/inspect", what, "", 60, "")
        assert reply[5] != "", "where to go on"
        assert len(reply) < 6 + 3 * 1.5 * PAGE
    semaphore = RedisSemaphore(3, name="s", config=config)
    assert [each.acquisition_id for each in await semaphore.waiters()] == ids
    listed = [each.acquisition_id for each in await semaphore.holders()]
    assert sorted(listed) == sorted([*holders, "sw-x-0*3"])


async def test_long_lists_of_tiers_come_in_parts_and_are_complete(
    config: RedisConfig, client: redis.Redis
) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name="t", url=config)
    held = await tiers.acquire(tenant="a")
    claim = client.hget("adv-sem:tiers_state:t", held.acquisition_id)
    ids = [f"sw-x-{n}" for n in range(2 * PAGE)]
    client.zadd("adv-sem:tiers_holders:t", dict.fromkeys(ids, time.time() + 60))
    client.hset("adv-sem:tiers_state:t", mapping=dict.fromkeys(ids, claim))
    listed = [each.acquisition_id for each in await tiers.holders()]
    assert sorted(listed) == sorted([*ids, held.acquisition_id])
    assert await tiers.release(held) is True


async def test_a_tier_with_very_many_waiting_keys_is_resized_in_parts(
    config: RedisConfig, client: redis.Redis
) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2_000), name="t", url=config)
    count = 2 * AT_ONCE + 50
    held = [await tiers.acquire(tenant=str(n)) for n in range(count)]
    waiting = [asyncio.create_task(tiers.acquire(tenant=str(n))) for n in range(count)]

    def all_wait() -> bool:
        return client.zcard("adv-sem:tiers_waiters:t") == count

    await until(all_wait, "all of them in the queue")
    await tiers.resize("tenant", 2)
    granted = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    for each in (*held, *granted):
        assert await tiers.release(each) is True


def test_silent_holders_of_very_many_slots_are_dropped_a_few_in_a_call(client: redis.Redis) -> None:
    past = time.time() - 5
    for n in range(3):
        wide = f"sw-dead-{n}*2000"
        client.zadd(KEYS.main, {wide: past, **{f"{wide}#{i}": past for i in range(2, 2_001)}})
    held = [run(client, "semaphore/inspect", "counts", "", 60, "")[1] for _ in range(3)]
    assert held == [4_000, 2_000, 0]


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_many_holders_are_not_kept_in_a_list_that_each_command_searches(
    client: redis.Redis, config: RedisConfig, kind: str, at_once: bool
) -> None:
    """A server keeps small sets as lists. See lua/base/lists.lua."""
    limit = (
        RedisSemaphore(name="s", value=100, config=config)
        if kind == "semaphore"
        else Tiers(Tier("all", 100), name="t", url=config).at()
    )
    if at_once:
        held = await asyncio.gather(*[limit.acquire() for _ in range(40)])
    else:
        held = [await limit.acquire() for _ in range(40)]
    sets = [key for key in client.scan_iter("*") if client.type(key) == "zset"]
    [holders] = [key for key in sets if client.zcard(key) == 40]
    assert client.object("encoding", holders) == "skiplist"
    for each in held:
        await limit.release(each.acquisition_id)
