"""`Tiers.at`, and what Tiers shares with every limit; tests/contract has the promises."""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle

import pytest

from slotwise import Limit, Rate, SemaphoreStats, Tier, Tiers
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


# ------------------------------------------------------ holders, waiters, kick


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
