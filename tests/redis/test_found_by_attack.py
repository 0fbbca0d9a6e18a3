"""What a hostile reviewer has found: each stays found."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis
from tests.redis._calls import Calls
from tests.redis._eval import evaluate
from tests.redis._inside import shared_of
from tests.redis._keys import PLACEHOLDER, SemaphoreKeys
from tests.redis._server import until
from tests.redis.test_semaphore import in_line

from slotwise import Rate, RateLimit, Tier, Tiers
from slotwise.errors import SemaphoreClosed
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._scripts import load
from slotwise.redis._survey import survey_sync

RATE = Rate(1000, per=3600, burst=1000)


def calls_of(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


async def test_a_head_that_is_too_large_for_what_is_free_is_no_work(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(3000, name="wide", config=config)
    large, small = await semaphore.acquire(1000), await semaphore.acquire(100)
    waiting = asyncio.create_task(semaphore.acquire(2500))
    await in_line(semaphore, 1)
    before = calls_of(client)
    await semaphore.release(small)
    for _ in range(100):
        await semaphore.stats()  # each tells whether something is unfinished
    assert calls_of(client) - before < 130
    await semaphore.release(large)
    await semaphore.release(await asyncio.wait_for(waiting, 20))


async def test_blocks_of_a_rate_that_are_cancelled_take_nothing(config: RedisConfig) -> None:
    rate, dice, entered = RateLimit("r", RATE, url=config), random.Random(7), 0
    await rate.level()

    async def block() -> None:
        nonlocal entered
        async with rate:
            entered += 1

    async def cancelled_some_time() -> None:
        task = asyncio.create_task(block())
        for _ in range(dice.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    for _ in range(20):
        await asyncio.gather(*(cancelled_some_time() for _ in range(10)))

    async def taken() -> float:
        level = (await rate.level()).level
        assert level is not None
        return 1000 - level

    async with asyncio.timeout(20):  # what was withdrawn may be on its way
        while abs(await taken() - entered) > 1:
            await asyncio.sleep(0)


async def test_requests_that_a_close_refuses_take_nothing_of_a_rate(config: RedisConfig) -> None:
    rate = RateLimit("r", RATE, url=config)
    await rate.level()
    tasks = [asyncio.create_task(rate.acquire()) for _ in range(20)]
    await asyncio.sleep(0)
    await rate.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    refused = sum(isinstance(each, SemaphoreClosed) for each in outcomes)
    again = RateLimit("r", RATE, url=config)
    async with asyncio.timeout(20):
        while 1000 - ((await again.level()).level or 0) > 20 - refused + 0.5:
            await asyncio.sleep(0)


def test_a_survey_tells_the_waiters_of_other_clients_of_their_grants(
    config: RedisConfig, client: redis.Redis
) -> None:
    keys = SemaphoreKeys("adv-sem", "s")

    pattern = keys.notification.decode()
    queue = load("documented/queue").source
    evaluate(client, queue, 2, keys.waiting, keys.waiting_heartbeat, "b", 1000, "", "")
    client.set(keys.max, 1, ex=60)
    assert survey_sync(config, [("semaphore", "s")]).semaphores["s"].acquired_slots == 1
    assert client.lpop(pattern.replace(PLACEHOLDER, "b")) is not None


async def test_keys_with_their_own_values_are_forgotten(
    config: RedisConfig, client: redis.Redis
) -> None:
    limits = Tiers(Tier("user", lambda _: 3, keyed=True), Tier("all", 100), name="t", url=config)
    for number in range(50):
        await limits.release(await limits.acquire(user=f"u{number}"))
    assert [each for each in client.hkeys("adv-sem:tiers_state:t") if each.startswith("0:")] == []


async def test_names_whose_notes_are_lost_are_noted_again(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(1, name="s", heartbeat_max_interval=3, config=config)
    async with semaphore:
        await semaphore.resize(2)  # kept for a day
        client.delete("adv-sem:names")
        shared_of(semaphore).heartbeat_thread.heartbeat_soon()
        await until(lambda: client.zscore("adv-sem:names", "adv-sem:semaphore_state:s"), "a note")
        client.set("adv-sem:names", "damaged")
        shared_of(semaphore).heartbeat_thread.heartbeat_soon()
        await until(lambda: client.type("adv-sem:names") == "zset", "notes")
    found = await asyncio.to_thread(survey_sync, config)
    assert list(found.semaphores) == ["s"]


def test_notes_that_can_not_be_read_are_told_as_such(
    config: RedisConfig, client: redis.Redis
) -> None:
    client.set("adv-sem:names", "damaged", ex=60)
    [error] = survey_sync(config).errors
    assert "the notes of names can't be read" in str(error)


@pytest.mark.parametrize("members", [9_000])
def test_very_many_keys_in_one_page_are_shown(client: redis.Redis, members: int) -> None:
    """As of a server that keeps large hashes as lists, which it scans as a whole."""
    for option in ("entries", "value"):
        client.config_set(f"hash-max-ziplist-{option}", 20_000)
    try:
        tiers = Calls(client, "adv-sem", "t", tiers="user*,all", values="1,0")
        tiers.request("sw-x-1", "0:a,1:")
        state = tiers.key("state")
        client.hset(state, mapping={f"0:u{n}": "1 0 - - 1" for n in range(members)})
        assert len(tiers.inspect("nodes")) > 2 * members
    finally:
        client.config_set("hash-max-ziplist-entries", 512)
        client.config_set("hash-max-ziplist-value", 64)


def test_waiters_whose_places_somebody_has_overwritten_learn_it_by_their_heartbeat(
    client: redis.Redis,
) -> None:
    calls = Calls(client, "adv-sem", "s")
    calls.request("sw-xx1-1")
    calls.request("sw-xx1-2")
    key = calls.key("waiting")
    client.delete(key)
    client.zadd(key, {"garbage": 1, "more of it": 2, "0:": 0})  # as many as were there, and more
    client.expire(key, 60)
    _, outcomes = calls.heartbeat(["sw-xx1-1"], ["sw-xx1-2"])
    assert "gone sw-xx1-2" in outcomes


def test_a_number_that_is_lost_is_noticed_by_the_first_that_needs_it(client: redis.Redis) -> None:
    """Until then nothing is wrong: so a name may be reset long after it was damaged."""
    calls = Calls(client, "adv-sem", "s", values=3)
    for number in range(1, 4):
        calls.request(f"sw-xx1-{number}")
    calls.release("sw-xx1-2")
    client.delete(calls.key("numbers"))
    for _ in range(3):
        _, outcomes = calls.heartbeat(["sw-xx1-1", "sw-xx1-3"])
        assert outcomes == []
    [*granted, reset] = calls.request("sw-xx1-4")
    assert granted[:2] == ["granted", 1]
    assert reset == "reset slot numbers are missing"


def test_one_that_has_lost_a_part_of_its_slots_has_lost_them_all(client: redis.Redis) -> None:
    """Or it would renew what the next ones have got, with numbers above the value."""
    calls = Calls(client, "adv-sem", "s", values=3)
    calls.request("sw-xx1-1*2")
    calls.request("sw-xx1-2")
    client.zrem(calls.key("main"), "sw-xx1-1*2#2", "sw-xx1-2")
    assert calls.request("sw-xx1-3*2")[:2] == ["granted", 1]
    assert calls.request("sw-xx1-4")[:2] == ["granted", 3]
    _, outcomes = calls.heartbeat(["sw-xx1-1*2", "sw-xx1-2", "sw-xx1-3*2", "sw-xx1-4"])
    assert outcomes == ["lost sw-xx1-1*2", "lost sw-xx1-2"]
    assert client.zcard(calls.key("main")) == 3
