"""An adaptive RedisSemaphore: samples travel with releases, and the value is the fleet's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from tests.redis._inside import shared_of
from tests.redis._keys import SemaphoreKeys
from tests.redis._window import read_window

from slotwise import Adaptive, Errors, Latency, ValueConflict
from slotwise.redis import RedisConfig, RedisSemaphore

NAMESPACE = RedisConfig().namespace
ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


def window_of(client: redis.Redis, name: str) -> dict[str, int]:
    """What is counted in the window of a semaphore."""
    names = ("mark", "begin", "ends", "need", "calls", "succeeded", "busy", "failed")
    adaptation = client.hget(SemaphoreKeys(NAMESPACE, name).state, "%0:")
    return dict(zip(names, read_window(adaptation.split(";", 2)[2]), strict=True))


async def test_threads_count_as_well_and_may_say_it(
    config: RedisConfig, client: redis.Redis
) -> None:
    rules = Adaptive(10, 2, 20, algorithm=Errors(), drop_on=(KeyError,))
    limit = RedisSemaphore(rules, name="s", config=config)
    seen: list[Any] = []

    def work() -> None:
        with limit.cm():
            pass
        seen.append(limit.value)
        with pytest.raises(KeyError), limit.cm():
            raise KeyError
        seen.append(limit.value)
        limit.release_sync(limit.acquire_sync(), outcome="dropped")
        seen.append(limit.value)
        limit.freeze_sync(5)
        limit.thaw_sync()
        with limit.cm() as acquired:
            acquired.dropped()
        seen.append([(each.old, each.new) for each in limit.changes_sync()])

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert seen == [10, 7, 4, [(10, 7), (7, 4), (4, 5), (5, 3)]]


async def test_the_hold_is_timed_by_the_clients_clock(
    config: RedisConfig, client: redis.Redis
) -> None:
    limit = RedisSemaphore(Adaptive(10, 2, 20), name="s", config=config)
    acquired = await limit.acquire()
    acquired.since -= 5  # type: ignore[attr-defined]
    await limit.release(acquired)
    counted = window_of(client, "s")
    assert 5_000_000 <= counted["busy"] < 15_000_000
    assert (counted["calls"], counted["succeeded"]) == (1, 1)


async def test_one_that_expires_is_dropped_and_one_that_is_kicked_or_lost_is_ignored(
    config: RedisConfig, client: redis.Redis
) -> None:
    limit = RedisSemaphore(Adaptive(10, 2, 20), name="s", ttl=0.2, config=config)
    expired = await limit.acquire()
    await asyncio.wait_for(expired.lost, 20)
    await limit.release(expired)  # the server may not know yet: it says the same
    while (await limit.stats()).acquired_slots:
        pass
    counted = window_of(client, "s")
    assert (counted["calls"], counted["succeeded"]) == (1, 0)
    assert counted["failed"] == counted["busy"] >= 200_000
    patient = RedisSemaphore(Adaptive(10, 2, 20), name="s", config=config)
    kicked = await patient.acquire()
    assert await patient.kick(kicked)
    lost = await patient.acquire()
    client.zadd(SemaphoreKeys(NAMESPACE, "s").main, {lost.acquisition_id: 1})  # silent for too long
    await limit.stats()
    again = window_of(client, "s")
    assert again["calls"] == 1
    assert again["busy"] > counted["busy"]
    await asyncio.wait_for(kicked.lost, 20)
    await patient.release(lost)


async def test_a_release_of_another_process_counts_since_the_grant(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = RedisSemaphore(Adaptive(10, 2, 20), name="s", config=config)
    acquired = await limit.acquire()
    holders = shared_of(limit).holders
    holder = holders.pop(acquired.acquisition_id)
    monkeypatch.setattr("slotwise.redis._shared_client.has_issued", lambda _: False)
    assert await limit.release(acquired.acquisition_id, outcome="dropped")
    holder.mark_ended()
    counted = window_of(client, "s")
    assert (counted["calls"], counted["succeeded"]) == (1, 0)
    assert counted["failed"] > 0


async def test_many_releases_of_one_tick_move_it_too(
    config: RedisConfig, client: redis.Redis
) -> None:
    limit = RedisSemaphore(Adaptive(4, 2, 50, algorithm=Errors()), name="s", config=config)
    held = [await limit.acquire() for _ in range(4)]
    waiting = [asyncio.create_task(limit.acquire()) for _ in range(6)]
    while len(await limit.waiters()) < 6:
        pass
    for each in held:
        each.since -= 100  # type: ignore[attr-defined]
    await asyncio.gather(*(limit.release(each) for each in held))
    while (await limit.stats()).acquired_slots < 5:
        pass
    assert (await limit.stats()).max_slots == 5
    assert window_of(client, "s")["need"] == 5
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in asyncio.as_completed(waiting):
        await limit.release(await each)
    assert done


@pytest.mark.parametrize(
    "window", ["", "x", "1;2", "1;x;y", b"1;2;\x01" + b"\x7f" * 56, b"\xff" * 57]
)
async def test_what_was_damaged_begins_anew(
    config: RedisConfig, client: redis.Redis, window: str | bytes
) -> None:
    limit = RedisSemaphore(ERRORS, name="s", config=config)
    async with limit.cm() as acquired:
        acquired.dropped()
    client.hset(SemaphoreKeys(NAMESPACE, "s").state, "%0:", window)
    async with limit.cm() as acquired:
        acquired.dropped()
    assert limit.value == 4
    for key in client.keys("*"):
        assert client.pttl(key) > 0, f"{key} would stay forever"


@pytest.mark.soak
async def test_an_adaptive_pair_takes_the_commands_of_a_fixed_one(
    config: RedisConfig, client: redis.Redis
) -> None:
    counts = []
    values: list[int | Adaptive] = [10, Adaptive(10, 2, 20, algorithm=Latency(0.001, 1))]
    for number, value in enumerate(values):
        limit = RedisSemaphore(value, name=f"s{number}", config=config)
        async with limit.cm():
            pass  # the scripts are known from now on
        before = client.info("commandstats")
        for _ in range(50):
            async with limit.cm():
                pass
        after = client.info("commandstats")
        calls = {
            name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after
        }
        counts.append(calls.get("cmdstat_evalsha"))
        assert calls.get("cmdstat_eval", 0) == 0
    # A heartbeat or two may come in between.
    assert all(100 <= count < 120 for count in counts), counts


async def test_clients_of_the_documented_protocol_keep_it_from_adapting(
    config: RedisConfig, client: redis.Redis
) -> None:
    """They bring their own limit: where one is first, an adaptive semaphore is refused."""
    keys = SemaphoreKeys(NAMESPACE, "s")
    client.zadd(keys.main, {"theirs": 4e9})
    client.set(keys.max, 7, ex=60)
    client.expire(keys.main, 60)
    with pytest.raises(ValueConflict, match="in use with 7 slots"):
        await RedisSemaphore(ERRORS, name="s", config=config).acquire()
    client.delete(keys.main)
    # One that comes later takes slots of it, and nothing about its work is counted.
    limit = RedisSemaphore(ERRORS, name="s", config=config)
    async with limit.cm():
        client.zadd(keys.main, {"theirs": 4e9})
        assert (await limit.stats()).acquired_slots == 2
        client.zrem(keys.main, "theirs")
    assert window_of(client, "s")["calls"] == 1
