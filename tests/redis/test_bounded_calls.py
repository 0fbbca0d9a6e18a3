"""No call keeps the server from others for long, however many names, slots or waiters there are."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from tests.redis._eval import evaluate
from tests.redis._inside import record_of
from tests.redis._server import FAKE_CLOCK, Server, until
from tests.redis.faults._proxy import IsSlow
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise import Tier, Tiers
from slotwise.errors import SemaphoreClosed
from slotwise.redis import RedisConfig, RedisSemaphore, _heartbeats
from slotwise.redis._heartbeats import _batches, _cost, _Entries, _parts
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._scripts import load
from slotwise.redis._semaphore_dialect import SEMAPHORE
from slotwise.redis._shared_client import NameRecord


def record_named(name: str) -> NameRecord:
    return NameRecord(SEMAPHORE, "adv-sem", SemaphoreKeys("adv-sem", name))


def members_of(batch: Any) -> int:
    return sum(sum(map(_cost, holders)) + len(waiters) for _, _, holders, waiters in batch)


@pytest.mark.soak
def test_heartbeats_travel_in_calls_of_bounded_cost_and_none_is_left_out() -> None:
    holders = [f"sw-p-{n}" for n in range(3_000)]
    parts = _parts("sw-p-7*10000", 10_000)
    waiters = [f"sw-p-{n}" for n in range(3_000, 5_000)]
    many = (record_named("many"), 1.0)
    entries: list[Any] = [(many, (holders, waiters)), *((many, ([part], [])) for part in parts)]
    entries += [((record_named(f"name{n}"), 1.0), ([f"sw-n-{n}"], [])) for n in range(500)]
    batches = list(_batches(entries, apart=False))
    assert max(len(batch) for batch in batches) <= 15
    assert max(members_of(batch) for batch in batches) <= 1_500
    assert sum(members_of(batch) for batch in batches) == 3_000 + 10_000 + 2_000 + 500
    sent = [entry for batch in batches for _, _, *both in batch for some in both for entry in some]
    named = [*holders, *parts, *waiters, *(f"sw-n-{n}" for n in range(500))]
    assert sorted(sent) == sorted(named)
    assert all(len(batch) == 1 for batch in _batches(entries, apart=True))


def test_the_parts_of_a_wide_holder_are_planned_one_by_one() -> None:
    """Two that were just renewed wait behind the names and the parts that were not."""

    def holder(name: str, slots: int, heard_at: float) -> Any:
        record = record_named(name)
        record.heartbeat_at = heard_at
        count = f"*{slots}" if slots > 1 else ""
        return SimpleNamespace(
            acquisition_id=f"sw-{name}-1{count}",
            slots=slots,
            record=record,
            parts=None,
            heard_at=heard_at,
            interval=10.0,
            ping_interval=2.0,
        )

    def planned(before: float) -> list[str]:
        entries = _Entries()
        for each in (wide, narrow):
            entries.add_holder(each)
        return [entry for _, (holders, _) in entries.sorted(before) for entry in holders]

    wide, narrow = holder("wide", 10_000, 100.0), holder("narrow", 1, 101.0)
    first, second, *others = [*_parts(wide.acquisition_id, 10_000)]
    assert planned(-math.inf) == [first, second, *others, "sw-narrow-1"]
    wide.parts |= {first: 103.0, second: 102.0}
    assert planned(-math.inf) == [*others, "sw-narrow-1", second, first]
    assert planned(103.5) == [*others, "sw-narrow-1"], "the others are not due yet"


def test_a_heartbeat_for_some_slots_of_a_wide_holder_renews_just_those(
    client: redis.Redis,
) -> None:
    keys, now = SemaphoreKeys(FAKE_CLOCK, "s"), round(time.time(), 3)

    def run(name: str, now: float, *args: object) -> Any:
        given = (*keys.all, f"{now:.6f}", *map(str, args))
        return evaluate(client, load(name).source, len(keys.all), *given)

    wide = "sw-x-1*10"
    granted = run("semaphore/request", now, wide, 10, 15, "", "try", "", 0, "host 1 ", "", "")
    assert granted[0] == "granted"
    assert run("semaphore/heartbeat", now + 5, "", 15, "", 1, 0, f"{wide}#4-6") == [[-1]]
    later = {
        member
        for member, score in client.zrange(keys.main, 0, -1, withscores=True)
        if score > now + 16
    }
    assert later == {f"{wide}#{n}" for n in (4, 5, 6)}
    # The others were silent: with them all of it is over.
    assert run("semaphore/heartbeat", now + 16, "", 15, "", 0, 0) == [[-1]]
    assert client.exists(keys.main) == 0
    assert run("semaphore/heartbeat", now + 16, "", 15, "", 1, 0, f"{wide}#1-3") == [
        [-1, f"lost {wide}"]
    ]


async def test_more_waiters_than_one_call_serves_are_all_served_in_order(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    first = await semaphore.acquire()
    tokens: dict[int, int] = {}
    done = asyncio.Event()

    async def wait(n: int) -> None:
        async with semaphore.cm() as acquired:
            tokens[n] = acquired.fencing_token or 0
            await done.wait()

    waiting = [asyncio.create_task(wait(n)) for n in range(1_000)]
    await in_line(semaphore, 1_000)
    # Somebody else makes room for all: the next ones have to hear that there is more.
    await RedisSemaphore(name="s", value=1, config=config).resize(1_001)
    await until(lambda: len(tokens) == 1_000, "everybody inside", within=30)
    granted = [tokens[n] for n in range(1_000)]
    assert granted == sorted(granted)
    done.set()
    await asyncio.gather(*waiting)
    await semaphore.release(first)
    assert_nothing_left(client)


@pytest.mark.soak
async def test_many_requests_of_tiers_are_sent_and_refused_in_several_calls(
    server: Server, client: redis.Redis
) -> None:
    """A path costs the server more than a slot of a semaphore, so a call carries fewer of them."""

    def calls() -> int:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

    tiers = Tiers(Tier("user", 1, keyed=True), Tier("all", 1), url=server.url, name="t")
    held = await tiers.acquire(user="first")
    before = calls()
    waiting = [asyncio.create_task(tiers.acquire(user=f"u{n % 50}")) for n in range(200)]
    await until(lambda: client.zcard("adv-sem:tiers_waiters:t") == 200, "200 waiters")
    assert calls() - before >= 4
    before = calls()
    await tiers.close_everywhere("maintenance")
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, SemaphoreClosed) for each in refused)
    assert calls() - before >= 4
    await tiers.release(held)
    await tiers.reopen()


@pytest.mark.soak
async def test_the_heartbeats_of_many_names_are_spread_over_the_interval(
    config: RedisConfig, client: redis.Redis
) -> None:
    held = []
    for n in range(300):
        name = f"spread{n}"
        semaphore = RedisSemaphore(name=name, value=1, heartbeat_max_interval=10, config=config)
        held.append((semaphore, await semaphore.acquire()))
    before = time.time() + 10

    def renewed() -> list[float]:
        scores = [
            client.zscore(f"adv-sem:semaphore_main:spread{n}", a.acquisition_id)
            for n, (_, a) in enumerate(held)
        ]
        return sorted({round(float(score or 0), 6) for score in scores})

    await until(lambda: renewed()[0] > before, "heartbeats of all", within=40)
    times = renewed()
    assert times[-1] - times[0] > 0.5, "some of the 2 s between two heartbeats"
    assert len(times) >= 6, "in several calls"
    assert not any(acquired.lost.is_set() for _, acquired in held)
    for semaphore, acquired in held:
        await semaphore.release(acquired)


@pytest.mark.soak
async def test_many_names_do_not_cost_those_of_a_short_interval_their_slots(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every name needs a call of its own here, and all of them take longer than an interval."""
    monkeypatch.setattr(_heartbeats, "COST_PER_CALL", 1)
    monkeypatch.setattr(IsSlow, "delay", 0.1)
    with IsSlow(server.port) as slow:
        config = RedisConfig(slow.url)
        many = [
            RedisSemaphore(
                1, name=f"n{n}", heartbeat_max_interval=60, ping_interval=1, config=config
            )
            for n in range(70)
        ]
        others = await asyncio.gather(*(each.acquire() for each in many))
        short = RedisSemaphore(1, name="short", heartbeat_max_interval=6, config=config)
        held = await short.acquire()
        names: list[NameRecord] = [record_of(each) for each in many]
        since = time.monotonic()

        def all_were_heard() -> bool:
            return held.lost.is_set() or all(each.heartbeat_at > since for each in names)

        await until(all_were_heard, "all were heard", within=60)
        assert not held.lost.is_set()
        assert not any(each.lost.is_set() for each in others)
        await asyncio.gather(*(each.release(one) for each, one in zip(many, others, strict=True)))
        await short.release(held)
