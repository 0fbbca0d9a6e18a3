"""Attacks that once succeeded: key lives, swallowed cancels, order within a tick, logs."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import redis
from tests.redis._server import Server, until
from tests.redis.faults._proxy import Proxy

from slotwise.errors import AcquireTimeout, BackendError
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis.scripts import load

MAIN, WAITING = "adv-sem:semaphore_main:x", "adv-sem:semaphore_waiting:x"


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
    slots, script = 1000, load("look")
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

    waiting = semaphore._process.waiters
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


@pytest.mark.parametrize("seed", range(6))
async def test_order_within_a_loop_is_kept_whatever_travels_together(
    config: RedisConfig, seed: int
) -> None:
    dice = random.Random(seed)
    semaphore = RedisSemaphore(value=dice.choice([1, 2, 3]), config=config)
    order: list[tuple[int | None, int]] = []

    async def work(number: int) -> None:
        async with semaphore.cm(label=dice.choice([None, None, None, "label"])) as acquired:
            order.append((acquired.fencing_token, number))
            await asyncio.sleep(dice.choice([0, 0, 0.0005, 0.001, 0.003]))

    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(work(number))
            if dice.random() < 0.5:
                await asyncio.sleep(dice.choice([0, 0.0005, 0.001, 0.002, 0.004]))
    assert [number for _, number in sorted(order)] == list(range(300))


def test_a_slot_that_comes_as_its_thread_is_interrupted_goes_back(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = RedisSemaphore(name="x", value=1, config=config)
    keeper = semaphore._process.keeper
    run = keeper.run

    def interrupted(coroutine: Coroutine[Any, Any, Any]) -> Any:
        run(coroutine)
        raise KeyboardInterrupt  # as a signal would, just when the result has come

    monkeypatch.setattr(keeper, "run", interrupted)
    for take in (semaphore.acquire_sync, semaphore.try_acquire_sync):
        with pytest.raises(KeyboardInterrupt):
            take()
        asyncio.run(until(lambda: client.zcard(MAIN) == 0, "it was given back"))
        assert not semaphore._process.holders


async def test_a_grant_is_no_sign_of_life(server: Server) -> None:
    """Cut off right after a grant, a holder gives up no later than the server does."""
    with Proxy(server.port) as proxy:
        config = RedisConfig(f"redis://127.0.0.1:{proxy.port}")
        here = RedisSemaphore(
            name="x", value=1, heartbeat_max_interval=2, ping_interval=1.9, config=config
        )
        there = RedisSemaphore(name="x", value=1, config=RedisConfig(server.url))
        held = await there.acquire()
        waiting = asyncio.create_task(here.acquire())
        await until(lambda: here._process.waiters, "the request")
        await asyncio.sleep(1.5)
        await there.release(held)
        granted = await waiting
    again = await there.acquire(timeout=10)
    await asyncio.wait_for(_wait_for(granted), 0.5)
    await there.release(again)


async def test_what_cannot_be_sent_or_counted_is_refused_before_it_is_asked_for(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        await semaphore.acquire(label="\ud800")
    assert not semaphore._process.waiters
    with pytest.raises(ValueError, match="at most"):
        RedisSemaphore(value=10**20, config=config)
    with pytest.raises(ValueError, match="at most"):
        await semaphore.resize(10**20)


async def test_a_made_up_id_of_very_many_slots_does_not_stop_the_server(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config.with_options(reply_timeout=2))
    held = await semaphore.acquire()
    started = time.perf_counter()
    assert not await semaphore.release("sw-made-up*2000000000")
    assert time.perf_counter() - started < 1
    assert await semaphore.release(held)


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


async def test_what_the_message_says_to_grant_a_user_is_enough(
    server: Server, client: redis.Redis
) -> None:
    rights = ["resetkeys", "~adv-sem:*", "resetchannels", "&slotwise:*", "-@all"]
    groups = ["+@scripting", "+@pubsub", "+@sortedset", "+@hash"]
    client.execute_command("ACL", "SETUSER", "slots", "on", ">secret", *rights, *groups)
    config = RedisConfig(f"redis://slots:secret@127.0.0.1:{server.port}")
    semaphore = RedisSemaphore(name="x", value=1, ttl=30, config=config)
    try:
        with pytest.raises(BackendError, match="does not allow this user enough") as raised:
            await semaphore.acquire()
        told = str(raised.value).partition("(it said")[0].split()
        granted = [word for word in told if word.startswith("+")]
        client.execute_command("ACL", "SETUSER", "slots", *granted)
        held = await semaphore.acquire()
        waiting = asyncio.create_task(semaphore.acquire(label="next"))
        await until(lambda: client.zcard(WAITING) == 1, "the waiter")
        assert len(await semaphore.holders()) == 1
        assert "x" in await RedisSemaphore.get_acquired_stats(config=config)
        await semaphore.resize(2)
        await semaphore.release(held)
        await semaphore.release(await waiting)
        await semaphore.close()
    finally:
        client.execute_command("ACL", "DELUSER", "slots")


async def test_strange_messages_on_the_channel_are_ignored(
    config: RedisConfig, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore = RedisSemaphore(value=1, config=config)
    held = await semaphore.acquire()
    for message in (b"nonsense", b"\xff\xfe", b""):
        client.publish(f"slotwise:{semaphore._process.seat().token}", message)
    assert await semaphore.release(held)
    assert not caplog.records


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


async def test_info_and_warnings_carry_the_fields_of_the_memory_driver(
    config: RedisConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slotwise.redis")
    semaphore = RedisSemaphore(name="x", value=3, config=config)
    acquired = await semaphore.acquire()
    await semaphore.release(acquired)
    expiring = await RedisSemaphore(name="x", value=3, ttl=0.1, config=config).acquire()
    await asyncio.wait_for(_wait_for(expiring), 5)
    taken, given, _, warned = caplog.records
    assert [taken.levelname, given.levelname, warned.levelname] == ["INFO", "INFO", "WARNING"]
    for record, result in ((taken, acquired), (given, acquired), (warned, expiring)):
        fields = vars(record)
        assert fields["semaphore_name"] == "x"
        assert fields["acquisition_id"] == result.acquisition_id
        assert fields["slot_number"] == 1
        assert fields["max_slots"] == 3
        assert fields["acquire_time" if record is taken else "held_time"] >= 0


async def _wait_for(acquired: Any) -> None:
    await acquired.lost
