"""Attacks that once succeeded: key lives, swallowed cancels, order within a tick, logs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import redis
from tests.redis._client import Worker
from tests.redis._interrupt import interrupted_on_its_way_to
from tests.redis._server import Server, until
from tests.redis.test_semaphore import in_line

from slotwise.errors import AcquireTimeout
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._scripts import load

MAIN, WAITING = "adv-sem:semaphore_main:x", "adv-sem:semaphore_waiting:x"
HEARTBEATS = "adv-sem:semaphore_waiting_heartbeat:x"


def patient_and_hasty(config: RedisConfig, **options: Any) -> tuple[RedisSemaphore, RedisSemaphore]:
    """One semaphore, as two processes with very different heartbeats would use it."""
    other = config.with_options(attempts=config.attempts + 1)
    return (
        RedisSemaphore(name="x", value=2, heartbeat_max_interval=60, config=config),
        RedisSemaphore(name="x", value=2, heartbeat_max_interval=1, config=other, **options),
    )


async def test_a_short_heartbeat_does_not_shorten_the_life_of_others(
    config: RedisConfig, client: redis.Redis
) -> None:
    patient, hasty = patient_and_hasty(config)
    held = await patient.acquire()
    await hasty.release(await hasty.acquire())
    assert client.pttl(MAIN) > 50_000
    await patient.release(held)


async def test_a_key_that_was_made_anew_lives_for_its_new_holders(
    config: RedisConfig, client: redis.Redis
) -> None:
    patient, hasty = patient_and_hasty(config, ttl=5)
    for _ in range(2):
        await patient.release(await patient.acquire())  # the key came, and went
    brief = await hasty.acquire()
    held = await patient.acquire()
    await hasty.release(brief)
    assert client.pttl(MAIN) > 50_000
    await patient.release(held)


async def test_a_short_heartbeat_does_not_shorten_the_line(
    config: RedisConfig, client: redis.Redis
) -> None:
    patient, hasty = patient_and_hasty(config)
    held = await patient.acquire(2)
    waiting = asyncio.create_task(patient.acquire(2))
    await until(lambda: client.zcard(WAITING) == 1, "the waiter")
    with pytest.raises(AcquireTimeout):
        await hasty.acquire(timeout=0.05)
    assert client.pttl(WAITING) > 50_000
    await patient.release(held)
    await patient.release(await waiting)


def test_burying_one_of_many_slots_is_no_pause(client: redis.Redis) -> None:
    slots, script = 1000, load("semaphore/inspect")
    keys = [f"k{number}" for number in range(7)]
    name = f"sw-dead-1*{slots}"
    client.zadd("k0", {name: 1, **{f"{name}#{number}": 1 for number in range(2, slots + 1)}})
    started = time.perf_counter()
    reply = client.eval(script.source.decode(), 7, *keys, "", "counts", "", 15)
    assert reply[1] == 0
    assert time.perf_counter() - started < 0.1  # each member once, not each for each


async def test_a_cancel_during_the_clean_up_of_a_timeout_is_not_swallowed(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config)
    held = await semaphore.acquire()

    async def insist() -> None:
        while True:
            try:
                await semaphore.acquire(timeout=0.05)
            except AcquireTimeout:
                pass

    waiting = semaphore._shared.waiters
    for _ in range(5):
        task = asyncio.create_task(insist())
        while not waiting:
            await asyncio.sleep(0)
        while waiting:  # then it cleans up
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done
        assert task.cancelled()
    await semaphore.release(held)


async def test_requests_that_linger_are_passed_by_nobody_when_slots_come_free_meanwhile(
    config: RedisConfig, server: Server
) -> None:
    """They travel as one call, find free slots against expectation, and a later one is behind."""
    semaphore = RedisSemaphore(name="x", value=3, config=config)
    order: list[tuple[int | None, str]] = []

    async def work(name: str, label: str | None = None) -> None:
        async with semaphore.cm(label=label) as acquired:
            order.append((acquired.fencing_token, name))

    with Worker(name="x", value=3, config={"url": server.url}) as worker:
        for _ in range(2):
            worker.tell("acquire")
            assert worker.hears().startswith("acquired")
        held = await semaphore.acquire()
        tasks = [asyncio.create_task(work("in line"))]
        await in_line(semaphore, 1)

        async def slots_come_free() -> None:
            """While this loop is in the middle of a tick, and two requests linger."""
            assert len(semaphore._shared.client().pending_requests[semaphore._record]) == 2
            for _ in range(2):
                worker.tell("release")
                assert worker.hears() == "released True"

        tasks += [asyncio.create_task(work(name)) for name in ("first", "second")]
        tasks += [asyncio.create_task(slots_come_free())]
        tasks += [asyncio.create_task(work("third", label="asks alone"))]
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        await semaphore.release(held)
    assert [name for _, name in sorted(order)] == ["in line", "first", "second", "third"]


def test_a_slot_that_comes_as_its_thread_is_interrupted_goes_back(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = RedisSemaphore(name="x", value=1, config=config)
    heartbeat_thread = semaphore._shared.heartbeat_thread
    run = heartbeat_thread.run

    def interrupted(coroutine: Coroutine[Any, Any, Any]) -> Any:
        run(coroutine)
        raise KeyboardInterrupt  # as a signal would, just when the result has come

    monkeypatch.setattr(heartbeat_thread, "run", interrupted)
    for take in (semaphore.acquire_sync, semaphore.try_acquire_sync):
        with pytest.raises(KeyboardInterrupt):
            take()
        asyncio.run(until(lambda: client.zcard(MAIN) == 0, "it was given back"))
        held = semaphore._shared.holders.values()
        assert [each for each in held if each.record is semaphore._record] == []


def test_a_thread_that_is_interrupted_before_its_release_began_has_released(
    config: RedisConfig, client: redis.Redis
) -> None:
    """By a real signal, which comes before the keeper was told of it."""
    semaphore = RedisSemaphore(name="x", value=1, config=config)
    held = semaphore.acquire_sync()
    heartbeat_thread = semaphore._shared.heartbeat_thread
    with interrupted_on_its_way_to(heartbeat_thread), pytest.raises(KeyboardInterrupt):
        semaphore.release_sync(held)
    asyncio.run(until(lambda: client.zcard(MAIN) == 0, "it was released"))
    assert held.acquisition_id not in semaphore._shared.holders
    assert not held.lost.is_set()


async def test_a_grant_is_no_sign_of_life(config: RedisConfig, client: redis.Redis) -> None:
    """Silent since it stood in line, a holder gives up when the server does: not a grant later."""
    interval = 3600.0
    semaphore = RedisSemaphore(
        name="x",
        value=1,
        heartbeat_max_interval=interval,
        ping_interval=3000,
        config=config.with_options(attempts=77),  # a keeper of its own, that is not to beat
    )
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    [deadline] = [score for _, score in client.zrange(HEARTBEATS, 0, -1, withscores=True)]
    await semaphore.release(held)
    granted = await waiting
    assert client.zscore(MAIN, granted.acquisition_id) == deadline, "the server's end of patience"

    assert isinstance(granted, RedisAcquisition)
    heartbeat_thread = semaphore._shared.heartbeat_thread
    ends_at = granted.alive_at + interval
    instant = 1e-6  # of which several passed between the two
    assert granted.since > granted.alive_at + 5 * instant

    async def see_who_is_silent_at(now: float) -> None:
        heartbeat_thread._lose_silent(now)

    await asyncio.to_thread(heartbeat_thread.run, see_who_is_silent_at(ends_at - instant))
    assert not granted.lost.is_set()
    await asyncio.to_thread(heartbeat_thread.run, see_who_is_silent_at(ends_at + instant))
    assert granted.lost.is_set()
    assert "no heartbeat got through" in (granted.lost.reason or "")


async def test_what_cannot_be_sent_or_counted_is_refused_before_it_is_asked_for(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        await semaphore.acquire(label="\ud800")
    assert not semaphore._shared.waiters
    with pytest.raises(ValueError, match="at most"):
        RedisSemaphore(value=10**20, config=config)
    with pytest.raises(ValueError, match="at most"):
        await semaphore.resize(10**20)


async def test_a_made_up_id_of_very_many_slots_does_not_stop_the_server(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config.with_options(reply_timeout=2))
    held = await semaphore.acquire()
    assert not await semaphore.release("sw-made-up*2000000000")  # or no reply in time
    assert await semaphore.release(held)


async def test_a_part_of_an_acquisition_is_not_released_by_itself(config: RedisConfig) -> None:
    semaphore = RedisSemaphore(value=3, config=config)
    held = await semaphore.acquire(3)
    assert await semaphore.release(f"{held.acquisition_id}#2") is False
    assert (await semaphore.stats()).acquired_slots == 3
    assert await semaphore.release(held) is True


async def test_what_foreign_clients_left_of_a_dead_holder_is_buried(client: redis.Redis) -> None:
    members = [f"sw-dead-1*30#{n}" for n in range(12, 31)]  # they removed the others
    client.zadd("k0", dict.fromkeys(members, 1))
    keys = [f"k{number}" for number in range(7)]
    reply = client.eval(load("semaphore/inspect").source.decode(), 7, *keys, "", "counts", "", 15)
    assert reply[1] == 0


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret/x@host:6379",
        "redis://user:secret?x@host",
        "redis://:x/secret@host",
        "redis://:secret[@host",
        "unix:///path?db=secret",
    ],
)
def test_a_url_that_is_not_understood_is_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="percent-encoded") as raised:
        RedisConfig(url)
    assert "secret" not in str(raised.value)


async def test_order_is_kept_while_the_server_refuses_everybody_for_a_moment(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="x", value=1, config=config)
    held = await semaphore.acquire()
    client.config_set("min-replicas-to-write", 1)  # NOREPLICAS for all that write
    try:
        first = [asyncio.create_task(semaphore.acquire(label=str(n))) for n in range(3)]
        await asyncio.sleep(0.12)
    finally:
        client.config_set("min-replicas-to-write", 0)
    later = [asyncio.create_task(semaphore.acquire(label=str(n))) for n in range(3, 6)]
    await until(lambda: client.zcard(WAITING) == 6, "the line")
    assert [each.label for each in await semaphore.waiters()] == list("012345")
    await semaphore.release(held)
    for each in first + later:
        await semaphore.release(await each)


async def test_a_release_that_was_refused_at_first_still_tells_what_it_freed(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="x", value=2, config=config)
    held, ended = await semaphore.acquire(), await semaphore.acquire()
    assert await semaphore.release(ended)
    client.config_set("min-replicas-to-write", 1)  # NOREPLICAS for all that write
    try:
        calls = [semaphore.release(held), semaphore.release(ended), semaphore.kick(ended)]
        tasks = [asyncio.create_task(call) for call in calls]
        line = semaphore._shared.client().reconnector_to(None)
        await until(lambda: line._pausing is not None, "a refusal")
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert await asyncio.gather(*tasks) == [True, False, False]


async def test_debug_and_warnings_carry_the_fields_of_the_memory_driver(
    config: RedisConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slotwise.redis")
    semaphore = RedisSemaphore(name="x", value=3, config=config)
    acquired = await semaphore.acquire()
    await semaphore.release(acquired)
    expiring = await RedisSemaphore(name="x", value=3, ttl=0.1, config=config).acquire()
    await asyncio.wait_for(_wait_for(expiring), 5)
    taken, given, _, warned = caplog.records
    assert [taken.levelname, given.levelname, warned.levelname] == ["DEBUG", "DEBUG", "WARNING"]
    for record, result in ((taken, acquired), (given, acquired), (warned, expiring)):
        fields = vars(record)
        assert fields["semaphore_name"] == "x"
        assert fields["acquisition_id"] == result.acquisition_id
        assert fields["slot_number"] == 1
        assert fields["max_slots"] == 3
        assert fields["acquire_time" if record is taken else "held_time"] >= 0


async def _wait_for(acquired: Any) -> None:
    await acquired.lost
