"""Reading all names of a server: one read-only script, and a SCAN once a minute."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from tests.redis._inside import record_of, shared_of
from tests.redis._server import until

from slotwise import Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore, _namespace
from slotwise.redis._names import REMEMBERED
from slotwise.redis._namespace import NamespaceContents, NamespaceReader


async def contents_of(reader: NamespaceReader) -> NamespaceContents:
    return await asyncio.to_thread(reader.read)


def calls(client: redis.Redis) -> dict[str, int]:
    """How often clients and scripts have called what."""
    stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


async def noted(client: redis.Redis, *members: str) -> None:
    await until(lambda: {*members} <= {*client.zrange("adv-sem:names", 0, -1)}, "the notes")


@pytest.mark.soak
async def test_all_names_are_read_by_one_script_and_no_scan(
    config: RedisConfig, client: redis.Redis
) -> None:
    reader = NamespaceReader(config)
    assert (
        await contents_of(reader)
    ).semaphores == {}  # with a SCAN, as nobody knows what is there
    semaphore = RedisSemaphore(2, name="api", config=config)
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 5), name="model", url=config)
    slot = await semaphore.acquire()
    held = await tiers.acquire(tenant="acme")
    waiting = asyncio.create_task(tiers.acquire(tenant="acme"))
    await noted(client, "semaphore api", "tiers model")
    client.config_resetstat()
    for _ in range(3):
        found = await contents_of(reader)
    counted = calls(client)
    assert counted["evalsha"] == 3
    assert "scan" not in counted
    assert not {"hset", "zadd", "zrem", "hdel", "pexpire", "set"} & counted.keys()  # it only reads
    stats = found.semaphores["api"]
    assert (stats.acquired_slots, stats.max_slots, stats.waiting) == (1, 2, 0)
    model = found.tiers["model"]
    assert (model.holders, model.waiters, found.errors) == (1, 1, [])
    assert model.stats == await tiers.stats()
    await tiers.release(held)
    await tiers.release(await waiting)
    await semaphore.release(slot)


@pytest.mark.others_keys
async def test_what_is_closed_or_of_foreign_clients_is_searched_for_once_a_minute(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NamespaceReader(config)
    await contents_of(reader)
    await RedisSemaphore(1, name="shut", config=config).close_everywhere("holidays")
    client.zadd("adv-sem:semaphore_main:theirs", {"them": 4e9})
    client.set("adv-sem:semaphore_max:theirs", 7)
    assert (await contents_of(reader)).semaphores == {}
    monkeypatch.setattr(_namespace, "_SCAN_EVERY", 0.0)
    found = (await contents_of(reader)).semaphores
    assert (found["shut"].closed, found["shut"].reason) == (True, "holidays")
    assert (found["theirs"].acquired_slots, found["theirs"].max_slots) == (1, 7)
    monkeypatch.undo()
    client.config_resetstat()
    assert (await contents_of(reader)).semaphores == found
    assert "scan" not in calls(client)


@pytest.mark.others_keys
async def test_what_is_damaged_is_told_and_hides_nothing_else(
    config: RedisConfig, client: redis.Redis
) -> None:
    fine = RedisSemaphore(1, name="fine", config=config)
    held = await fine.acquire()
    for kind in ("semaphore_main", "tiers_state"):
        client.set(f"adv-sem:{kind}:damaged", "x")
    client.set(b"adv-sem:semaphore_main:\xff", "x")
    client.set("adv-sem:names", "x")
    found = await contents_of(NamespaceReader(config))
    assert found.semaphores.keys() == {"fine"}
    told = " ".join(map(str, found.errors))
    assert "'damaged' can't be read" in told
    assert "the tiers 'damaged' can't be read" in told
    assert "not text" in told
    await fine.release(held)


async def test_the_dead_are_not_counted(config: RedisConfig, client: redis.Redis) -> None:
    semaphore = RedisSemaphore(2, name="api", config=config)
    living, dead = await semaphore.acquire(), await semaphore.acquire()
    client.zadd("adv-sem:semaphore_main:api", {dead.acquisition_id: 1})
    tiers = Tiers(Tier("all", 2), name="model", url=config)
    lost = await tiers.acquire()
    client.zadd("adv-sem:tiers_holders:model", {lost.acquisition_id: 1})
    found = await contents_of(NamespaceReader(config))
    assert found.semaphores["api"].acquired_slots == 1
    assert "model" not in found.tiers or found.tiers["model"].holders == 0
    for each in (living, dead):
        await semaphore.release(each)
    await tiers.release(lost)


async def test_what_comes_and_goes_is_not_noted_and_notes_expire(
    config: RedisConfig, client: redis.Redis
) -> None:
    for attempt in range(20):  # a machine that stands still makes a brief use a long one
        async with RedisSemaphore(1, name=f"brief {attempt}", config=config).cm():
            pass
        kept = RedisSemaphore(1, name=f"kept {attempt}", config=config)
        async with kept.cm():
            await noted(client, f"semaphore kept {attempt}")
        if f"semaphore brief {attempt}" not in client.zrange("adv-sem:names", 0, -1):
            break
    else:
        pytest.fail("what was used briefly is noted")
    assert 0 < client.pttl("adv-sem:names") <= REMEMBERED * 1000


@pytest.mark.soak
async def test_heartbeats_note_again_what_was_lost(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(1, name="long", config=config)
    held = await semaphore.acquire()
    await noted(client, "semaphore long")
    client.delete("adv-sem:names")
    record_of(semaphore).noted_until = 0.0  # half a minute later
    shared_of(semaphore).heartbeat_thread.heartbeat_soon()
    await noted(client, "semaphore long")
    await semaphore.release(held)


@pytest.mark.soak
async def test_very_many_names_are_read_in_bounded_calls(
    config: RedisConfig, client: redis.Redis
) -> None:
    with client.pipeline(transaction=False) as pipe:
        now = client.time()[0]
        for number in range(2500):
            pipe.zadd(f"adv-sem:semaphore_main:{number}", {"them": 4e9})
            pipe.set(f"adv-sem:semaphore_max:{number}", 3)
            if number % 2:
                pipe.zadd("adv-sem:names", {f"semaphore {number}": now})
        pipe.execute()
    found = await contents_of(NamespaceReader(config))
    assert len(found.semaphores) == 2500
    assert {each.acquired_slots for each in found.semaphores.values()} == {1}
