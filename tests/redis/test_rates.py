"""Rates on a real server: taken in one step with slots, and waited for without polling."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time

import pytest
import pytest_asyncio
from tests.redis._calls import Calls
from tests.redis._inside import shared_of

from slotwise import Rate, RateLimit, Tier, Tiers
from slotwise.redis import RedisConfig
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._heartbeats import HeartbeatSender
from slotwise.redis._writing import write_path, write_value

_names = itertools.count(1)
SLOW = Rate(1, per=3600, burst=5)  # nothing comes back while a test runs


@pytest_asyncio.fixture
async def make(server):
    made = []

    def make_tiers(*tiers, name=None, **options):
        name = name or f"rates-{os.getpid()}-{next(_names)}"
        made.append(Tiers(*tiers, name=name, url=RedisConfig(server.url), **options))
        return made[-1]

    yield make_tiers
    for each in made:
        await each.close()


async def level(limits, tier, key=None):
    stats = (await limits.stats())[tier]
    return pytest.approx((stats if key is None else stats.keys[key]).level, abs=0.1)


@pytest.mark.soak
async def test_the_process_of_the_next_one_comes_back_by_itself(make, monkeypatch):
    """Told by the server, and exactly then: not by its heartbeat thread, which comes later."""
    monkeypatch.setattr(HeartbeatSender, "schedule_check", lambda *_: None)
    tiers = Tier("tokens", rate=Rate(50, per=1, burst=1)), Tier("all", 9)
    limits = make(*tiers, heartbeat_max_interval=3600)
    async with asyncio.timeout(20):
        results = await asyncio.gather(*[limits.acquire() for _ in range(9)])
    for each in results:
        await limits.release(each)


@pytest.mark.soak
async def test_others_come_back_when_the_process_of_the_next_one_does_not(make, monkeypatch):
    monkeypatch.setattr(RedisAcquisition, "_come_back", lambda *_: None)
    limits = make(Tier("tokens", rate=Rate(50, per=1, burst=1)), Tier("all", 9))
    async with asyncio.timeout(30):
        results = await asyncio.gather(*[limits.acquire() for _ in range(5)])
    for each in results:
        await limits.release(each)


async def test_what_was_used_is_settled_with_the_release_or_by_id(make):
    limits = make(Tier("tokens", rate=SLOW), Tier("all", 9))
    other = make(Tier("tokens", rate=SLOW), Tier("all", 9), name=limits.name)
    async with limits.cm(tokens=4) as acquired:
        acquired.settle(tokens=1)
    assert await level(limits, "tokens") == 4
    await other.settle(acquired.acquisition_id, tokens=3)
    assert await level(limits, "tokens") == 2
    async with limits.cm(tokens=1) as second:
        await second.settle(tokens=9)
        assert await level(limits, "tokens") == -7
        await second.settle(tokens=0)
        assert await level(limits, "tokens") == 2
        second.settle(tokens=12)
    assert await level(limits, "tokens") == -10
    assert await limits.try_acquire() is None
    await other.refill("tokens")
    assert await level(limits, "tokens") == 5
    with pytest.raises(LookupError, match="too long ago"):
        await limits.settle("sw-nobody-1*1.1", tokens=1)
    with pytest.raises(TypeError, match="is not a rate"):
        acquired.settle(all=1)
    with pytest.raises(ValueError, match="cost of 'tokens'"):
        acquired.settle(tokens=-1)


async def test_one_that_a_thread_acquired_is_settled_in_a_loop_though_nobody_awaits_that(make):
    limits = make(Tier("tokens", rate=SLOW), Tier("all", 9))
    held = await asyncio.to_thread(limits.acquire_sync, tokens=4)
    await held.settle(tokens=3)
    assert await level(limits, "tokens") == 2
    held.settle(tokens=1).cancel()
    await limits.release(held)
    assert await level(limits, "tokens") == 4


async def test_an_id_that_nobody_has_says_nothing_else_to_the_scripts(make):
    limits = make(Tier("tokens", rate=SLOW), Tier("all", 9))
    held = await limits.acquire(tokens=3)
    for wrong in (f"~{held.acquisition_id}", f"{held.acquisition_id} 0=0", "", " "):
        with pytest.raises(LookupError, match="is not an acquisition"):
            await limits.settle(wrong, tokens=1)
        assert await limits.release(wrong) is False
    assert await level(limits, "tokens") == 2
    [holder] = await limits.holders()
    assert holder.acquisition_id == held.acquisition_id
    await limits.release(held)
    assert await level(limits, "tokens") == 2


async def test_the_level_of_a_key_that_takes_turns_is_known_while_somebody_waits(make, look_until):
    tokens = Tier("tokens", rate=SLOW, keyed=True)
    limits = make(tokens, Tier("all", 1), order="fair", fair_by="tokens")
    held = await limits.acquire(tokens="a", costs={"tokens": 1})
    waiting = asyncio.create_task(limits.acquire(tokens="a", costs={"tokens": 2}))
    await look_until(lambda: _waits(limits, 1))
    assert await level(limits, "tokens", "a") == 4
    await limits.release(held)
    await limits.release(await waiting)
    assert await level(limits, "tokens", "a") == 2


async def _waits(limits, count):
    return (await limits.stats())["all"].waiting == count


@pytest.fixture
def look_until():
    async def until(condition):
        async with asyncio.timeout(30):
            while not await condition():
                await asyncio.sleep(0.002)

    return until


async def _is_lost(acquired):
    return acquired.lost.is_set()


async def _is_free(limits):
    return (await limits.stats())["all"].active == 0


@pytest.mark.parametrize("slots", [1, {"tenant": 2}])
async def test_heartbeats_renew_a_holder_that_took_of_a_rate_or_several_slots(
    make, server, look_until, slots
):
    limits = make(
        Tier("tenant", 3, keyed=True),
        Tier("tokens", rate=SLOW),
        heartbeat_max_interval=60,
        ping_interval=0.1,
    )
    key = f"adv-sem:tiers_holders:{limits.name}"
    with server.client() as client:
        async with limits.cm(tenant="a", tokens=3, slots=slots) as acquired:
            first = client.zscore(key, acquired.acquisition_id)
            assert first is not None

            async def is_renewed():
                return client.zscore(key, acquired.acquisition_id) > first

            await look_until(is_renewed)


def rate_alone(client):
    """A rate of one a second, and its scripts with a clock of the test."""
    value, now = write_value(Rate(1, per=1, burst=1)), round(time.time())
    return Calls(client, "adv-sem", "t", tiers="tokens", values=value, interval=3600, now=now)


def request(scripts, acquisition_id):
    return scripts.request(acquisition_id, write_path((None,)), due="due settle")


def come_back(scripts, *waiters):
    due_ms, outcomes = scripts.heartbeat((), waiters, caller="y")
    return due_ms, [outcome.split()[0] for outcome in outcomes]


def test_a_dead_head_delays_nobody_behind_it(client):
    """Whoever waits is told when the head's time has come, and has it served in its place."""
    scripts = rate_alone(client)
    assert request(scripts, "sw-x-1*1")[0] == "granted"
    told = "due sw-dead-2*1 1000000"
    assert request(scripts, "sw-dead-2*1") == ["queued", 1000, told]  # and it never comes back
    assert request(scripts, "sw-y-3*1") == ["queued", 1000]
    scripts.now += 1
    assert come_back(scripts, "sw-y-3*1") == (1000, ["due"])  # it is next itself now
    scripts.now += 1
    assert come_back(scripts, "sw-y-3*1")[1] == ["granted"]


def test_when_the_clock_of_the_server_steps_back_waiters_go_on_from_there(client):
    scripts = rate_alone(client)
    assert request(scripts, "sw-y-1*1")[0] == "granted"
    assert request(scripts, "sw-y-2*1")[:2] == ["queued", 1000]
    scripts.now -= 600
    assert come_back(scripts) == (1000, ["due"])
    assert request(scripts, "sw-y-3*1") == ["queued", 1000]
    scripts.now += 1
    assert come_back(scripts) == (1000, ["granted", "due"])
    scripts.now += 1
    assert come_back(scripts) == (-1, ["granted"])


def heartbeat_while_the_loop_reads_nothing(client, limit, waiter):
    """Have a heartbeat of another thread find the waiter once the server has granted it."""
    shared, taken = shared_of(limit), waiter.record.keys.all[-2:]
    while not any(client.hexists(key, waiter.acquisition_id) for key in taken):
        time.sleep(0.001)
    scripts = Calls(client, "adv-sem", limit.name, tiers="limit", interval=60)
    _, outcomes = scripts.heartbeat((), (waiter.acquisition_id,), caller=waiter.client.token)
    assert outcomes[0].startswith("granted")
    thread = threading.Thread(target=lambda: [shared.dispatch(each.encode()) for each in outcomes])
    thread.start()
    thread.join()


async def test_a_heartbeat_that_overtakes_the_reply_of_a_grant_takes_nothing_back(server, client):
    """Of a rate nothing is held, so that a heartbeat finds neither a holder nor a waiter."""
    limit = RateLimit(f"rates-{os.getpid()}-{next(_names)}", SLOW, url=RedisConfig(server.url))
    await limit.acquire()  # connected
    waiters = shared_of(limit).waiters
    waiting = asyncio.create_task(limit.acquire())
    while not any(each.needs_heartbeat for each in waiters.values()):
        await asyncio.sleep(0)
    heartbeat_while_the_loop_reads_nothing(client, limit, *waiters.values())
    async with asyncio.timeout(30):
        await waiting
    assert (await limit.stats()).acquired_slots == 2  # it was taken once
    await limit.close()


def test_a_heartbeat_says_of_a_rate_that_it_was_granted_until_that_is_forgotten(client):
    scripts = rate_alone(client)
    assert request(scripts, "sw-y-1*1")[0] == "granted"
    assert come_back(scripts, "sw-y-1*1") == (-1, ["granted"])
    scripts.now += 61
    come_back(scripts)  # forgets it
    assert come_back(scripts, "sw-y-1*1") == (-1, ["gone"])
