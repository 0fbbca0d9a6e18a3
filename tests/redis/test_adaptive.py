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

import slotwise
from slotwise import Adaptive, Errors, Latency, ValueConflict
from slotwise.redis import RedisConfig, RedisSemaphore

NAMESPACE = RedisConfig().namespace
ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


def window_of(client: redis.Redis, name: str) -> dict[str, int]:
    """What is counted in the window of a semaphore."""
    names = ("mark", "begin", "ends", "need", "calls", "succeeded", "busy", "failed")
    adaptation = client.hget(SemaphoreKeys(NAMESPACE, name).state, "%0:")
    return dict(zip(names, read_window(adaptation.split(";", 2)[2]), strict=True))


async def outcome_of(limit: RedisSemaphore, client: redis.Redis, name: str) -> str:
    """Which outcome the last release was counted as: of `Errors`, each shows."""
    counted, value = window_of(client, name), limit.value
    await limit.freeze(10)
    await limit.thaw()
    if value < 10:
        return "dropped"
    return "ok" if counted["succeeded"] else "ignored"


async def test_an_acquisition_ends_as_the_block_does(
    config: RedisConfig, client: redis.Redis
) -> None:
    limit = RedisSemaphore(ERRORS, name="s", config=config)
    seen = []

    async def look() -> None:
        seen.append(await outcome_of(limit, client, "s"))

    async with limit.cm():
        pass
    await look()
    async with limit:
        pass
    await look()
    for error in (TimeoutError, ConnectionResetError, ValueError, asyncio.CancelledError):
        with pytest.raises(error):
            async with limit.cm():
                raise error
        await look()
    with pytest.raises(TimeoutError):
        async with limit:
            raise TimeoutError
    await look()
    async with limit.cm() as acquired:
        acquired.dropped(retry_after=1)
    await look()
    async with limit.cm() as acquired:
        acquired.ignored()
    await look()
    await limit.release((await limit.acquire()).acquisition_id)
    await look()
    await limit.release(await limit.acquire(), outcome="dropped")
    await look()
    await limit.release((await limit.acquire(2)).acquisition_id, outcome="ignored")
    await look()
    blocks = ["ok", "ok", "dropped", "dropped", "ignored", "ignored", "dropped"]
    assert seen == [*blocks, "dropped", "ignored", "ok", "dropped", "ignored"]
    with pytest.raises(ValueError, match="outcome must be"):
        await limit.release("sw-x-1", outcome="good")  # type: ignore[arg-type]


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


async def test_the_value_moves_for_everybody_and_waiters_get_what_it_gained(
    config: RedisConfig,
) -> None:
    rules = Adaptive(2, 2, 10, algorithm=Errors())
    limit = RedisSemaphore(rules, name="s", config=config)
    other = RedisSemaphore(rules, name="s", config=config)
    held = [await limit.acquire() for _ in range(2)]
    waiting = [asyncio.create_task(other.acquire()) for _ in range(3)]
    while len(await limit.waiters()) < 3:
        pass
    for each in held:
        each.since -= 100  # type: ignore[attr-defined]  # it was in use
        await limit.release(each)
    # Two successes at a value of two: one slot more, so all three are served.
    granted = await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert limit.value == 3
    assert (await other.stats()).max_slots == 3
    [change] = await other.changes()
    assert (change.old, change.new, change.reason) == (2, 3, "2 calls without a drop")
    for each in granted:
        await other.release(each)


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


async def test_it_can_be_frozen_and_a_resize_freezes_it(
    config: RedisConfig, client: redis.Redis
) -> None:
    limit = RedisSemaphore(ERRORS, name="s", config=config)
    await limit.freeze()
    async with limit.cm() as acquired:
        acquired.dropped()
    assert limit.value == 10
    await limit.freeze(15)
    assert limit.value == 15
    assert (await limit.stats()).max_slots == 15
    await limit.thaw()
    async with limit.cm() as acquired:
        acquired.dropped()
    assert limit.value == 10
    await limit.resize(5)
    async with limit.cm() as acquired:
        acquired.dropped()
    assert limit.value == 5
    for outside in (1, 21):
        with pytest.raises(ValueError, match="within 2 and 20"):
            await limit.freeze(outside)
        with pytest.raises(ValueError, match="within 2 and 20"):
            await limit.resize(outside)
    changes = [(each.old, each.new) for each in await limit.changes()]
    assert changes == [(10, 15), (15, 10), (10, 5)]
    assert client.ttl(SemaphoreKeys(NAMESPACE, "s").state) > 20 * 3600, "an operator's word is kept"


async def test_all_users_of_a_name_have_the_same_rules(config: RedisConfig) -> None:
    def made(value: int | Adaptive) -> RedisSemaphore:
        return RedisSemaphore(value, name="s", config=config)

    first = made(Adaptive(5, 1, 9))
    held = await first.acquire()
    again = made(Adaptive(5, 1, 9, drop_on=(KeyError,)))
    await again.release(await again.acquire())
    others: list[int | Adaptive] = [Adaptive(5, 1, 8), Adaptive(5, 1, 9, algorithm=Latency(2)), 5]
    for other in others:
        with pytest.raises(ValueConflict, match=r"adapts \(1 to 9 from 5"):
            await made(other).acquire()
    with pytest.raises(ValueConflict, match=r"adapts \(1 to 9 from 5"):
        await made(Adaptive(5, 1, 8)).freeze()
    await first.release(held)
    async with made(5).cm():
        for call in (first.acquire, first.freeze):
            with pytest.raises(ValueConflict, match="in use with 5 slots"):
                await call()
    async with first.cm():
        assert await first.changes() == [], "what was learnt before is another one's"


async def test_moving_to_a_fleet_changes_a_url_and_nothing_else(config: RedisConfig) -> None:
    for url in ("memory://", config):
        limit = slotwise.semaphore("anywhere", Adaptive(20, min=2, max=200), url)
        async with limit.cm() as acquired:
            acquired.dropped(retry_after=2)
        assert limit.value == 20
        assert await limit.changes() == []


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


async def test_retry_after_may_pause_it_in_the_same_step(
    config: RedisConfig, client: redis.Redis
) -> None:
    rules = Adaptive(1, 1, 20, algorithm=Errors(), pause_on_retry_after=True)
    limit = RedisSemaphore(rules, name="s", config=config)
    held = await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())
    while not await limit.waiters():
        pass
    held.dropped(retry_after=600)
    await limit.release(held)
    assert await limit.try_acquire() is None
    assert 0 < (await limit.stats()).paused_for <= 600
    assert (await limit.stats()).acquired_slots == 0
    await limit.reopen()
    await limit.release(await asyncio.wait_for(waiting, 20))
    assert (await limit.stats()).paused_for == 0
    careless = RedisSemaphore(Adaptive(1, 1, 20, algorithm=Errors()), name="s", config=config)
    async with careless.cm() as acquired:
        acquired.dropped(retry_after=100)
    assert (await limit.stats()).paused_for == 0
