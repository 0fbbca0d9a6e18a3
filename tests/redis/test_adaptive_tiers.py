"""Adaptive tiers on Redis: each node finds its own value, and releases carry the samples."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from tests.redis._keys import PATH_KINDS, PathKeys
from tests.redis._window import read_window

from slotwise import Adaptive, Errors, Latency, Rate, Tier, Tiers, ValueConflict
from slotwise.instrumentation import add_hook, remove_hook
from slotwise.redis import RedisConfig

ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


def tiers(config: RedisConfig, *more: Any, name: str = "t", **options: Any) -> Tiers:
    made = [*more] or [Tier("tenant", ERRORS, keyed=True), Tier("all", Adaptive(30, 5, 50))]
    return Tiers(*made, name=name, url=config, **options)


def field(client: redis.Redis, name: str) -> Any:
    return client.hget(PathKeys(RedisConfig().namespace, "t").all[0], name)


async def values(of: Tiers) -> dict[str, Any]:
    stats = await of.stats()
    return {
        "all": stats["all"].value,
        **{key: each.value for key, each in stats["tenant"].keys.items()},
    }


async def test_each_key_adapts_alone(config: RedisConfig) -> None:
    made = tiers(config)
    for key, outcome in (("acme", "dropped"), ("emca", "ok"), ("mace", "ignored")):
        async with made.at(tenant=key).cm() as acquired:
            if outcome != "ok":
                getattr(acquired, outcome)()
    assert await values(made) == {"all": 30, "acme": 7, "emca": 10, "mace": 10}
    [change] = await made.changes("tenant", "acme")
    assert (change.old, change.new, change.reason) == (10, 7, "a call was dropped")
    assert await made.changes("tenant", "emca") == await made.changes("all") == []


async def test_it_ends_as_the_block_does(config: RedisConfig, client: redis.Redis) -> None:
    made = tiers(config)
    limit = made.at(tenant="acme")
    for error in (TimeoutError, ValueError, asyncio.CancelledError):
        with pytest.raises(error):
            async with limit.cm():
                raise error
    with pytest.raises(ConnectionError):
        async with limit:
            raise ConnectionError
    assert (await values(made))["acme"] == 4  # two drops
    held = await limit.acquire()
    await made.release(held.acquisition_id, outcome="dropped")
    assert (await values(made))["acme"] == 2
    counted = read_window(field(client, "%1:").split(";", 2)[2])
    assert counted[4:6] == (3, 0), "that of the other tier counts them too"


async def test_one_that_expires_is_dropped_and_one_that_is_kicked_is_ignored(
    config: RedisConfig,
) -> None:
    made = tiers(config, ttl=0.2)
    expired = await made.at(tenant="acme").acquire()
    await asyncio.wait_for(expired.lost, 20)
    while (await made.stats())["all"].active:
        pass
    assert (await values(made))["acme"] == 7
    other = tiers(config)
    kicked = await other.at(tenant="emca").acquire()
    assert await other.kick(kicked)
    assert (await values(made))["emca"] == 10


async def test_what_a_value_gains_is_granted_in_the_same_step(config: RedisConfig) -> None:
    rules = Adaptive(2, 2, 10, algorithm=Errors())
    made = tiers(config, Tier("tenant", rules, keyed=True), Tier("all", 50))
    limit = made.at(tenant="acme")
    held = [await limit.acquire() for _ in range(2)]
    waiting = [asyncio.create_task(limit.acquire()) for _ in range(3)]
    while (await limit.stats()).waiting < 3:
        pass
    for each in held:
        each.since -= 100  # type: ignore[attr-defined]  # it was in use
        await limit.release(each)
    granted = await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert (await values(made))["acme"] == 3
    for each in granted:
        await limit.release(each)


async def test_it_is_frozen_as_a_whole_or_by_key(config: RedisConfig, client: redis.Redis) -> None:
    made = tiers(config)

    async def drop(key: str) -> int:
        async with made.at(tenant=key).cm() as acquired:
            acquired.dropped()
        return int((await values(made))[key])

    assert await drop("acme") == 7
    await made.freeze("tenant", key="acme")
    assert await drop("acme") == 7
    assert await drop("emca") == 7
    await made.freeze("tenant", 12)
    assert [await drop(key) for key in ("acme", "emca", "new")] == [12, 12, 12]
    await made.thaw("tenant", "acme")
    assert [await drop(key) for key in ("acme", "emca")] == [8, 12]
    await made.thaw("tenant")
    assert [await drop(key) for key in ("emca", "new", "newer")] == [8, 8, 7]
    await made.resize("tenant", 5, "acme")
    assert await drop("acme") == 5
    await made.resize("all", 40)
    assert (await values(made))["all"] == 40
    for outside in (1, 21):
        with pytest.raises(ValueError, match="within 2 and 20"):
            await made.freeze("tenant", outside)
    with pytest.raises(TypeError, match="each with its own changes"):
        await made.changes("tenant")
    assert [each.new for each in await made.changes("tenant", "acme")] == [7, 12, 8, 5]


async def test_objects_must_have_the_same_rules(config: RedisConfig) -> None:
    one = tiers(config, Tier("x", Adaptive(5, 1, 9)))
    held = await one.at().acquire()
    for other in (Adaptive(5, 1, 8), Adaptive(5, 1, 9, algorithm=Latency(2)), 5):
        with pytest.raises(ValueConflict, match=r"adaptive \(1 to 9 from 5"):
            await tiers(config, Tier("x", other)).at().acquire()
    await one.release(held)
    async with tiers(config, Tier("x", 5)).at().cm():
        with pytest.raises(ValueConflict, match="in use as x=5, not x adaptive"):
            await one.at().acquire()


async def test_more_slots_than_the_minimum_are_refused(config: RedisConfig) -> None:
    made = tiers(config)
    limit = made.at(tenant="acme")
    async with limit.cm({"tenant": 2, "all": 5}):
        pass
    with pytest.raises(ValueError, match="may fall to 2 slots"):
        await limit.acquire({"tenant": 3})


async def test_rates_and_adaptive_tiers_go_together(config: RedisConfig) -> None:
    made = tiers(config, Tier("calls", rate=Rate(100, per=3600, burst=100)), Tier("all", ERRORS))
    limit = made.at()
    async with limit.cm() as acquired:
        acquired.settle(calls=50)
        acquired.dropped(retry_after=1)
    stats = await made.stats()
    assert stats["all"].value == 7
    assert stats["calls"].level < 95  # type: ignore[operator]


async def test_hooks_hear_of_changes_with_tier_and_key(config: RedisConfig) -> None:
    seen: list[Any] = []
    add_hook(seen.append)
    try:
        made = tiers(config)
        async with made.at(tenant="acme").cm() as acquired:
            acquired.dropped()
    finally:
        remove_hook(seen.append)
    [event] = [each for each in seen if each.kind == "adapted"]
    assert (event.name, event.tier, event.keys, event.value) == (
        "t",
        "tenant",
        {"tenant": "acme"},
        7,
    )


async def test_a_key_that_nobody_uses_is_forgotten_with_what_it_learnt(
    config: RedisConfig, client: redis.Redis
) -> None:
    made = tiers(config, heartbeat_max_interval=60, ping_interval=0.1)
    keys = PathKeys(RedisConfig().namespace, "t").all
    state, cleanup = keys[0], keys[PATH_KINDS.index("cleanup")]
    for key in ("acme", "emca"):
        async with made.at(tenant=key).cm() as acquired:
            acquired.dropped()
    await made.freeze("tenant", key="emca")
    for key in ("acme", "emca"):
        _, rest = field(client, f"%0:{key}").split(";", 1)
        long_ago = f"1;{rest}".encode(errors="surrogateescape")
        client.hset(state, f"%0:{key}", long_ago)
        client.zadd(cleanup, {f"%0:{key}": 1}, xx=True)
    async with made.at(tenant="new").cm():
        while field(client, "%0:acme"):  # heartbeats look for such
            await asyncio.sleep(0.05)
    assert field(client, "0:acme") is None
    assert field(client, "&0:acme") is None
    assert field(client, "%0:emca"), "it is frozen"


async def test_retry_after_may_pause_a_key(config: RedisConfig) -> None:
    rules = Adaptive(5, 1, 9, algorithm=Errors(), pause_on_retry_after=True)
    made = tiers(config, Tier("tenant", rules, keyed=True), Tier("all", 50))
    async with made.at(tenant="acme").cm() as acquired:
        acquired.dropped(retry_after=100)
    assert await made.at(tenant="acme").try_acquire() is None
    other = await made.at(tenant="emca").try_acquire()
    assert other is not None
    await made.release(other)
    await made.reopen()
    async with made.at(tenant="acme").cm():
        pass
