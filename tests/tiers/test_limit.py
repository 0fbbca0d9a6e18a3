"""`Tiers.at`, and what Tiers shares with every limit; tests/contract has the promises."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import os
import pickle

import pytest

from slotwise import Limit, Rate, RateLimit, SemaphoreClosed, SemaphoreStats, Tier, Tiers
from slotwise.tiers._tier import RESERVED

NAMES = ("keys alone", "with a wide tier")
TENANT, ALL = Tier("tenant", 2, keyed=True), Tier("all", 3)


async def test_at_is_a_limit_of_one_path(tiers):
    limits = tiers(TENANT, ALL)
    acme = limits.at(tenant="acme")
    assert isinstance(acme, Limit)
    assert (acme.tiers, acme.keys) == (limits, {"tenant": "acme"})
    assert "tenant='acme'" in repr(acme)
    held = [await acme.acquire() for _ in range(2)]
    assert await acme.locked() is True
    assert await limits.at(tenant="other").locked() is False
    assert await acme.try_acquire() is None
    assert await limits.release(held.pop()) is True
    assert await limits.try_acquire(tenant="acme") is not None


async def test_stats_are_those_of_the_tier_with_the_fewest_free_slots(tiers):
    limits = tiers(TENANT, ALL)
    acme, other = limits.at(tenant="acme"), limits.at(tenant="other")
    assert await acme.stats() == SemaphoreStats(0, 2)
    await acme.acquire()
    assert await acme.stats() == SemaphoreStats(1, 2)
    await other.acquire()
    await other.acquire()
    assert await acme.stats() == SemaphoreStats(3, 3), "all is full, acme has a slot left"
    assert await other.stats() == SemaphoreStats(2, 2)


async def test_a_path_without_limits_never_blocks_and_is_counted(tiers):
    free = tiers(Tier("tenant", 0, keyed=True), Tier("all", 0)).at(tenant="acme")
    await free.acquire()
    assert await free.locked() is False
    stats = await free.stats()
    assert (stats.acquired_slots, stats.max_slots, stats.acquired_percent) == (1, 0, 0.0)


async def test_a_path_tells_that_its_tiers_are_closed_everywhere_and_why(tiers):
    limits = tiers(TENANT, ALL)
    acme = limits.at(tenant="acme")
    await limits.close_everywhere("maintenance")
    assert await acme.locked() is True
    assert (await acme.stats()).closed is True
    assert (await acme.stats()).reason == "maintenance"
    with pytest.raises(SemaphoreClosed, match="maintenance"):
        await acme.try_acquire()
    await limits.reopen()
    assert (await acme.stats()).closed is False
    await limits.close()
    assert await acme.locked() is True
    assert (await acme.stats()).closed is False, "that is for this process alone"


async def test_max_acquire_time_is_the_timeout_of_those_who_give_none(tiers):
    limits = tiers(Tier("all", 1), max_acquire_time=0.05)
    assert limits.max_acquire_time == 0.05
    held = await limits.acquire(timeout=None)
    for wait in (limits.acquire(), limits.cm().__aenter__(), limits.at().acquire()):
        with pytest.raises(TimeoutError, match=r"in 0\.05 s"):
            await wait
    waiting = asyncio.create_task(limits.acquire(timeout=None))
    await limits.release(held)
    await waiting


@pytest.mark.parametrize("name", ["slots", "timeout", "label", "self", "not a name"])
def test_a_tier_whose_name_collides_with_a_parameter_is_refused(name):
    with pytest.raises(ValueError, match="can't be called"):
        Tier(name, 1)


def test_so_is_one_that_collides_with_what_takes_its_key_or_its_cost():
    with pytest.raises(ValueError, match=r"can't be called 'seconds': pause\(\) has"):
        Tier("seconds", 1, keyed=True)
    with pytest.raises(ValueError, match=r"can't be called 'acquisition_id': settle\(\) has"):
        Tier("acquisition_id", rate=Rate(1, per=1))
    tiers = Tiers(Tier("seconds", rate=Rate(60, per=3600)), Tier("acquisition_id", 1))
    held = tiers.acquire_sync(seconds=5)
    tiers.settle_sync(held, seconds=4)
    tiers.pause_sync(0)


def test_every_parameter_beside_keys_and_costs_is_reserved():
    taken = set()
    for method in (Tiers.acquire, Tiers.try_acquire, Tiers.cm, Tiers.estimate, Tiers.at):
        parameters = inspect.signature(method).parameters.values()
        taken |= {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    assert taken <= RESERVED


async def test_try_acquire_sync_may_be_called_in_a_running_loop(tiers):
    limits = tiers(Tier("all", 1))
    held = limits.try_acquire_sync()
    assert held is not None
    assert limits.at().try_acquire_sync() is None
    assert limits.release_sync(held) is True


# ------------------------------------------------------ holders, waiters, kick


async def test_holders_and_waiters_show_keys_and_labels(tiers, look):
    limits = tiers(TENANT, Tier("all", 2))
    first = await limits.acquire(tenant="acme", label="import")
    second = await limits.at(tenant="other").acquire()
    waiting = [asyncio.create_task(limits.acquire(tenant="acme", label="late"))]
    await look.waiters(limits, 1)
    waiting.append(asyncio.create_task(limits.acquire(tenant="third")))
    await look.waiters(limits, 2)
    holders, waiters = await limits.holders(), await limits.waiters()
    assert [each.acquisition_id for each in holders] == [
        first.acquisition_id,
        second.acquisition_id,
    ]
    assert [each.label for each in holders] == ["import", None]
    assert [each.keys for each in holders] == [{"tenant": "acme"}, {"tenant": "other"}]
    assert [each.slot_number for each in holders] == [1, 2]
    assert {each.pid for each in holders + waiters} == {os.getpid()}
    assert [each.label for each in waiters] == ["late", None]
    assert [each.keys for each in waiters] == [{"tenant": "acme"}, {"tenant": "third"}]
    for twin, expected in ((limits.holders_sync, holders), (limits.waiters_sync, waiters)):
        found = await asyncio.to_thread(twin)
        assert [each.acquisition_id for each in found] == [each.acquisition_id for each in expected]
    assert pickle.loads(pickle.dumps(holders)) == copy.deepcopy(holders) == holders
    await limits.release(first)
    await limits.release(second)
    for one in waiting:
        await limits.release(await one)
    assert await limits.holders() == await limits.waiters() == []


async def test_a_waiter_tells_which_tier_it_lacks(tiers, look):
    limits = tiers(Tier("tenant", 1, keyed=True), Tier("all", 2))
    held = [await limits.acquire(tenant=tenant) for tenant in ("acme", "other")]
    assert [each.lacks for each in await limits.holders()] == [None, None]
    waiting = []
    for number, tenant in enumerate(("acme", "acme", "third"), 1):
        waiting.append(asyncio.create_task(limits.acquire(tenant=tenant)))
        await look.waiters(limits, number)
    lacked = [(each.keys["tenant"], each.lacks) for each in await limits.waiters()]
    assert lacked == [("acme", "tenant"), ("acme", "tenant"), ("third", "all")]
    began = [each.since for each in await limits.waiters()]
    assert began == sorted(began), "when each began to wait"
    for one in held:
        await limits.release(one)
    for each in (waiting[0], waiting[2], waiting[1]):
        await limits.release(await each)


async def test_a_kicked_acquisition_is_lost_and_its_slots_go_to_the_next(tiers, look):
    limits = tiers(Tier("tenant", 1, keyed=True), ALL)
    held = await limits.acquire(tenant="acme")
    waiting = asyncio.create_task(limits.acquire(tenant="acme"))
    await look.waiters(limits, 1)
    [waiter] = await limits.waiters()
    assert await limits.kick(waiter.acquisition_id) is False, "it still waits"
    assert await limits.kick(held) is True
    async with asyncio.timeout(30):
        await held.lost
        following = await waiting
    assert "it was kicked" in held.lost.reason
    assert await limits.kick(held.acquisition_id) is False
    assert await limits.release(held) is False
    assert await asyncio.to_thread(limits.kick_sync, following) is True
    assert (await limits.stats())["all"].active == 0


async def test_labels_are_shown_however_slots_are_taken(tiers, look):
    limits = tiers(Tier("tenant", 9, keyed=True), Tier("all", 9))
    path = limits.at(tenant="acme")

    def in_a_thread(context):
        with context:
            labels.append([holder.label for holder in limits.holders_sync()][-1])

    labels = []
    async with limits.cm(tenant="acme", label="a block"), path.cm(label="[a path]"):
        held = [
            await limits.acquire(tenant="acme", label="acquired"),
            await limits.try_acquire(tenant="acme", label="tried"),
            await path.acquire(label="s1-2 [path]"),
            await path.try_acquire(label=""),
            await asyncio.to_thread(limits.acquire_sync, tenant="acme", label="in a thread"),
            await asyncio.to_thread(path.try_acquire_sync, label="x\ny"),
        ]
        holders = await limits.holders()
        assert [holder.label or "" for holder in holders] == [
            *("a block", "[a path]", "acquired", "tried", "s1-2 [path]", ""),
            *("in a thread", "x\ny"),
        ]
        ids = [holder.acquisition_id for holder in holders]
        assert ids[2:] == [each.acquisition_id for each in held]
        await asyncio.to_thread(in_a_thread, limits.cm(tenant="acme", label="block in a thread"))
        assert labels == ["block in a thread"]
        await limits.resize("all", 8)
        waiting = [
            asyncio.create_task(limits.acquire(tenant="acme", label="waiting")),
            asyncio.create_task(limits.cm(tenant="acme", label="a block waits").__aenter__()),
            asyncio.create_task(path.acquire(label="a path waits")),
            asyncio.create_task(
                asyncio.to_thread(limits.acquire_sync, tenant="acme", label="a thread waits")
            ),
        ]
        await look.waiters(limits, 4)
        assert {waiter.label for waiter in await limits.waiters()} == {
            *("waiting", "a block waits", "a path waits", "a thread waits")
        }
        for each in held:
            assert await limits.release(each) is True
        for each in asyncio.as_completed(waiting):
            await limits.release(await each)


@pytest.mark.parametrize("wide", [(), (Tier("all", 2),), (Tier("all", 0),)])
async def test_holders_waiters_and_kick_are_those_of_the_scope(tiers, look, wide):
    tenant = Tier("tenant", 1, keyed=True)
    one, other = (tiers(tenant, *wide, name=NAMES[len(wide)]) for _ in range(2))
    held = await one.acquire(tenant="acme & co", label="here")
    waiting = asyncio.create_task(one.acquire(tenant="acme & co", label="waits"))
    await look.waiters(other, 1)
    [waiter], [holder] = await other.waiters(), await other.holders()
    assert (waiter.label, waiter.keys) == ("waits", {"tenant": "acme & co"})
    assert (holder.label, holder.keys) == ("here", {"tenant": "acme & co"})
    assert holder.acquisition_id == held.acquisition_id
    assert await other.at(tenant="acme & co").locked() is True
    assert await other.kick(held) is True
    async with asyncio.timeout(30):
        await held.lost
        following = await waiting
    assert await asyncio.to_thread(other.release_sync, following.acquisition_id) is True
    assert await one.release(following) is False
    assert await one.holders() == await other.waiters() == []


# ---------------------------------------------------------------- its scope


def test_every_constructor_argument_of_tiers_is_an_attribute():
    parameters = {*inspect.signature(Tiers).parameters} - {"atomic", "closed_error"}
    assert {each for each in parameters if not isinstance(getattr(Tiers, each), property)} == set()
    limits = Tiers(TENANT, ALL, ttl=5, max_idle_keys=7)
    assert (limits.tiers, limits.ttl, limits.max_idle_keys) == ((TENANT, ALL), 5, 7)
    assert (limits.url, limits.ping_interval) == (None, None)


def test_a_copy_of_a_path_is_the_same_path():
    limits = Tiers(TENANT, ALL, name="copied path")
    twin = pickle.loads(pickle.dumps(limits.at(tenant="acme")))
    held = [limits.acquire_sync(tenant="acme") for _ in range(2)]
    assert twin.locked_sync() is True
    assert limits.release_sync(held.pop()) is True
    assert twin.locked_sync() is False


async def test_logs_name_the_keys(tiers, caplog):
    caplog.set_level(logging.DEBUG, "slotwise")
    limits = tiers(TENANT, ALL, ttl=0.05)
    held = await limits.acquire(tenant="acme")
    async with asyncio.timeout(30):
        await held.lost
        while "lost by" not in caplog.text:  # a thread may be about to say it
            await asyncio.sleep(0.01)
    named = [each for each in caplog.records if hasattr(each, "slot_number")]
    assert "tenant='acme' lost by" in named[-1].getMessage()
    for record in named:
        assert "tenant='acme'" in record.getMessage()
        assert (record.keys, record.acquisition_id) == ({"tenant": "acme"}, held.acquisition_id)


async def test_locked_of_a_path_or_a_rate_answers_bool_in_memory_alone(anywhere, tiers):
    path = tiers(Tier("user", 1, keyed=True), Tier("all", 1)).at(user="a")
    limits = [path]
    if "process" not in str(anywhere.get("url")):  # which has no rates
        name = anywhere.get("name")
        limits.append(RateLimit(name and f"{name}-rate", Rate(1, per=60), url=anywhere.get("url")))
    for limit in limits:
        if "url" not in anywhere:
            assert not limit.locked()
        await limit.acquire()
        assert await limit.locked() is True
        if "url" not in anywhere:
            assert limit.locked()
        else:
            with pytest.raises(TypeError, match="await"):
                bool(limit.locked())
