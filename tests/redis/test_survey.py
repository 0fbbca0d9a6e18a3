"""How all names of a namespace are found and read: by what the scripts note, and by no SCAN."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
from tests.redis._calls import Calls

from slotwise import Rate, Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._survey import Contents, survey_sync

NAMES = "adv-sem:names"


async def look(config: RedisConfig, *given: Any, **options: Any) -> Contents:
    return await asyncio.to_thread(survey_sync, config, *given, **options)


def calls(client: redis.Redis) -> dict[str, int]:
    """How often clients and scripts have called what."""
    stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


async def test_whatever_is_kept_of_a_name_it_is_found_after_its_first_use_by_no_scan(
    config: RedisConfig, client: redis.Redis
) -> None:
    def semaphore(name: str) -> RedisSemaphore:
        return RedisSemaphore(2, name=name, heartbeat_max_interval=600, config=config)

    def tiers(name: str, *more: Tier) -> Tiers:
        made = more or (Tier("tenant", 1, keyed=True), Tier("all", 5))
        return Tiers(*made, name=name, heartbeat_max_interval=600, url=config)

    held = await semaphore("held").acquire()
    waited_for = tiers("waited for")
    path = await waited_for.acquire(tenant="acme")
    waiting = asyncio.create_task(waited_for.acquire(tenant="acme"))
    while not await waited_for.waiters():
        pass
    await semaphore("shut").close_everywhere("holidays")
    await tiers("shut too").close_everywhere()
    await semaphore("paused").pause(1000)
    await tiers("paused too").pause(1000)
    await tiers("drained", Tier("calls", rate=Rate(5, per=3600, burst=5))).acquire()
    client.config_resetstat()
    found = await look(config)
    assert found.errors == []
    assert found.semaphores.keys() == {"held", "shut", "paused"}
    assert found.tiers.keys() == {"waited for", "shut too", "paused too", "drained"}
    stats = found.semaphores["held"]
    assert (stats.acquired_slots, stats.max_slots, stats.waiting) == (1, 2, 0)
    assert (found.semaphores["shut"].closed, found.semaphores["shut"].reason) == (True, "holidays")
    assert found.semaphores["paused"].paused_for > 900
    busy = found.tiers["waited for"]
    assert (busy.holders, busy.waiters, busy.drained) == (1, 1, False)
    assert busy.stats == await waited_for.stats()
    assert found.tiers["drained"].drained
    assert "scan" not in calls(client)
    # Some of them, by kind or by name, known or not.
    assert (await look(config, kinds=("tiers",))).semaphores == {}
    some = [("semaphore", "held"), ("semaphore", "nobody's"), ("tiers", "held")]
    found = await look(config, some)
    assert (found.semaphores.keys(), found.tiers, found.errors) == ({"held"}, {}, [])
    await waited_for.release(path)
    await waited_for.release(await waiting)
    await semaphore("held").release(held)


async def test_the_dead_are_not_counted(config: RedisConfig, client: redis.Redis) -> None:
    semaphore = RedisSemaphore(2, name="s", config=config)
    living, dead = await semaphore.acquire(), await semaphore.acquire()
    client.zadd("adv-sem:semaphore_main:s", {dead.acquisition_id: 1})
    tiers = Tiers(Tier("all", 2), name="t", url=config)
    lost = await tiers.acquire()
    client.zadd("adv-sem:tiers_holders:t", {lost.acquisition_id: 1})
    found = await look(config)
    assert found.semaphores["s"].acquired_slots == 1
    assert found.tiers["t"].holders == 0
    for each in (living, dead):
        await semaphore.release(each)
    await tiers.release(lost)


async def test_what_only_the_documented_protocol_knows_is_found_by_its_name(
    config: RedisConfig, client: redis.Redis
) -> None:
    client.zadd("adv-sem:semaphore_main:theirs", {"them": 4e9})
    client.set("adv-sem:semaphore_max:theirs", 7, ex=60)
    client.expire("adv-sem:semaphore_main:theirs", 60)
    assert (await look(config)).semaphores == {}
    stats = (await look(config, [("semaphore", "theirs")])).semaphores["theirs"]
    assert (stats.acquired_slots, stats.max_slots) == (1, 7)


@pytest.mark.others_keys
async def test_a_damaged_set_of_names_harms_nothing_and_begins_anew(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(2, name="s", config=config)
    held = await semaphore.acquire()
    client.delete(NAMES)
    client.set(NAMES, "something else")
    assert await semaphore.release(held) is True
    closed = RedisSemaphore(1, name="closed", config=config)
    for _ in range(2):  # what is there goes with the first note, and the next one is kept
        await closed.close_everywhere()
    assert (await look(config)).semaphores.keys() == {"closed"}


@pytest.mark.others_keys
async def test_garbage_among_the_names_is_told_or_left_out(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(2, name="s", config=config)
    held = await semaphore.acquire()
    members = ["", "garbage", "adv-sem:semaphore_main:s", "adv-sem:semaphore_state:nobody's"]
    client.zadd(NAMES, {**dict.fromkeys(members, 4e9), b"adv-sem:tiers_state:\xff": 4e9})
    found = await look(config)
    assert (found.semaphores.keys(), found.tiers) == ({"s"}, {})
    [error] = found.errors
    assert r"a name that is not text: b'\xff'" in str(error)
    assert await semaphore.release(held) is True


def test_the_set_of_names_expires_with_the_last_of_them_and_forgets_those_that_are_over(
    client: redis.Redis,
) -> None:
    now = round(time.time(), 3)
    for n in range(200):
        one = Calls(client, "adv-sem", f"s{n}", now=now + n)
        assert one.request("sw-x-1")[0] == "granted"
        one.release("sw-x-1")
    assert client.zcard(NAMES) < 60
    state = one.key("state")
    assert client.zscore(NAMES, state) >= now + 199 + client.pttl(state) / 1000 - 5
    assert client.pttl(NAMES) >= client.pttl(state) - 5_000
    assert one.control("forget") == ["done", 1]
    assert client.zscore(NAMES, state) is None
