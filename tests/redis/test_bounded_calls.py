"""No call keeps the server from others for long, however many names, slots or waiters there are."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from tests.redis._inside import record_of
from tests.redis._keys import SemaphoreKeys
from tests.redis._server import Server, until
from tests.redis.faults._proxy import IsSlow
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore, _heartbeats
from slotwise.redis._heartbeats import _batches
from slotwise.redis._shared_client import NameRecord


def record_named(name: str) -> NameRecord:
    return NameRecord("semaphore", "adv-sem", SemaphoreKeys("adv-sem", name))


def acquisitions(prefix: str, count: int, slots: int = 1) -> list[Any]:
    return [SimpleNamespace(acquisition_id=f"sw-{prefix}-{n}", slots=slots) for n in range(count)]


@pytest.mark.soak
def test_heartbeats_travel_in_calls_of_bounded_cost_and_none_is_left_out() -> None:
    holders, wide = acquisitions("holder", 3_000), acquisitions("wide", 4, 1_000)
    waiters = acquisitions("waiter", 2_000)
    entries: list[Any] = [((record_named("many"), 1.0), ([*holders, *wide], waiters))]
    others = acquisitions("other", 500)
    entries += [((record_named(f"name{n}"), 1.0), ([each], [])) for n, each in enumerate(others)]
    slots = {each.acquisition_id: each.slots for each in (*holders, *wide, *waiters, *others)}

    def cost(batch: Any) -> int:
        return sum(slots[each] for _, _, *both in batch for some in both for each in some)

    batches = list(_batches(entries, apart=False))
    assert max(len(batch) for batch in batches) <= 20
    assert max(map(cost, batches)) <= _heartbeats.COST_PER_CALL
    sent = [each for batch in batches for _, _, *both in batch for some in both for each in some]
    assert sorted(sent) == sorted(slots)
    assert all(len(batch) == 1 for batch in _batches(entries, apart=True))


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
