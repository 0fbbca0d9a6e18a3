"""Thousands of holders and waiters are served, closed, resized and listed in bounded calls."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
import redis
from tests.redis._calls import Calls
from tests.redis._server import until

from slotwise import Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore

# As in lua/rules/base.lua.
AT_ONCE, PAGE = 100, 250


@pytest.fixture
def scripts(client: redis.Redis) -> Calls:
    """Those of a semaphore of three slots."""
    return Calls(client, "adv-sem", "s", values=3, interval=60)


def queue(scripts: Calls, count: int, *, slots: int = 1) -> list[str]:
    """Fill a semaphore of 3 slots and queue that many behind that."""
    assert scripts.request("sw-x-0*3")[0] == "granted"
    several = "" if slots == 1 else f"*{slots}"
    ids = [f"sw-x-{n}{several}" for n in range(1, count + 1)]
    for at in range(0, count, AT_ONCE):
        scripts.request(*ids[at : at + AT_ONCE])
    return ids


def calls(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def commands(client: redis.Redis) -> int:
    """How many commands the server has run, those of scripts too."""
    return sum(each["calls"] for each in client.info("commandstats").values())


def test_a_heartbeat_needs_few_commands_however_many_it_names(client: redis.Redis) -> None:
    """Those of holders, and of waiters that were granted without having heard of it."""
    scripts = Calls(client, "adv-sem", "s", values=2_000, interval=60)
    ids = [f"sw-x-{n}" for n in range(1_000)]
    for at in range(0, 1_000, AT_ONCE):
        scripts.request(*ids[at : at + AT_ONCE])
    renewed = f"({time.time() + 60}"
    before = commands(client)
    _, outcomes = scripts.heartbeat(ids[:500], ids[500:])
    assert commands(client) - before < 100
    assert [each.rpartition(" ")[0] for each in outcomes] == [
        f"granted {each} {n + 501}" for n, each in enumerate(ids[500:])
    ]
    assert client.zcount(scripts.key("main"), renewed, "inf") == 1_000


def test_one_call_grants_a_bounded_number_and_says_that_there_is_more(
    scripts: Calls, client: redis.Redis
) -> None:
    """Also one that serves twice, as a resize does."""
    queue(scripts, 3 * AT_ONCE)
    held = [3]
    assert scripts.control("resize", 0, "", 1_000, 60, "", caller="x")[-1] == "unfinished"
    held.append(client.zcard(scripts.key("main")))
    while held[-1] < 3 + 3 * AT_ONCE:
        scripts.heartbeat()
        held.append(client.zcard(scripts.key("main")))
    steps = [after - before for before, after in itertools.pairwise(held)]
    assert AT_ONCE / 2 < max(steps) <= AT_ONCE


def test_one_call_of_close_refuses_a_bounded_number_and_heartbeats_the_rest(
    scripts: Calls, client: redis.Redis
) -> None:
    ids = queue(scripts, 3 * AT_ONCE)
    told = scripts.control("close", "moved", caller="x")[1:]
    assert told.pop() == "unfinished"
    # One that is asked again meanwhile is refused, and leaves the queue.
    assert scripts.request(ids[-1], again=True) == ["closed", "moved"]
    due_ms, steps = 0, [len(told)]
    while due_ms == 0:
        due_ms, outcomes = scripts.heartbeat(caller="x")
        told += outcomes
        steps.append(len(outcomes))
    assert [*told] == [f"closed {each} moved" for each in ids]
    assert max(steps) <= AT_ONCE
    fields = client.hkeys(scripts.key("state"))
    assert [field for field in fields if field.startswith("sw-")] == ["sw-x-0*3"]


def test_one_call_of_resize_refuses_a_bounded_number_and_says_where_to_go_on(
    scripts: Calls, client: redis.Redis
) -> None:
    ids = queue(scripts, 2 * PAGE, slots=3)
    refused: list[str] = []
    go_on = ""
    for _ in range(20):
        word, go_on, *told = scripts.control("resize", 0, "", 2, 60, go_on, caller="x")
        assert word == "done"
        assert len(told) < 1.5 * PAGE
        refused += told
        if not go_on:
            break
    assert go_on == ""
    assert {*refused} == {f"refused {each} 2 0" for each in ids}
    assert client.exists(scripts.key("waiting")) == 0


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
async def test_long_lists_come_in_parts_and_are_complete(
    config: RedisConfig, client: redis.Redis, kind: str
) -> None:
    count = 2 * PAGE + 50
    if kind == "semaphore":
        scripts = Calls(client, "adv-sem", "s", values=count, interval=60)
        limit: Any = RedisSemaphore(count, name="s", config=config)
    else:
        given: Any = {"tiers": "all", "values": f"{count}"}
        scripts = Calls(client, "adv-sem", "s", interval=60, **given)
        limit = Tiers(Tier("all", count), name="s", url=config)
    ids = [f"sw-x-{n:04}" for n in range(2 * count)]
    for at in range(0, len(ids), AT_ONCE):
        some = ids[at : at + AT_ONCE]
        scripts.request(*(some if kind == "semaphore" else [w for i in some for w in (i, "0:")]))
    for what in ("holders", "waiters"):
        assert len(scripts.inspect(what)) < 3 * 1.5 * PAGE
    assert [each.acquisition_id for each in await limit.waiters()] == ids[count:]
    assert [each.acquisition_id for each in await limit.holders()] == ids[:count]


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
    scripts = Calls(client, "adv-sem", "s", values=6_000)
    for n in range(3):
        assert scripts.request(f"sw-dead-{n}*2000")[0] == "granted"
    main = scripts.key("main")
    client.zadd(main, dict.fromkeys(client.zrange(main, 0, -1), time.time() - 5))
    seen = [6_000]
    while seen[-1]:
        seen.append(scripts.counts()[0])
    assert seen == [6_000, 4_000, 2_000, 0]


# ------------------------------------------------------------------------ very many keys of tiers
