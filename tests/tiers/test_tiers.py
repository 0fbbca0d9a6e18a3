"""Tiers, the general form, on every backend."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from slotwise import AcquireTimeout, SemaphoreClosed, SlotManager, Tier, Tiers

TENANT, MODEL, ALL = (
    Tier("tenant", 2, keyed=True),
    Tier("model", 2, keyed=True),
    Tier("all", 3),
)


async def test_all_tiers_are_taken_together_and_given_back_together(tiers):
    limits = tiers(TENANT, MODEL, ALL)
    async with limits.cm(tenant="acme", model="large") as acquired:
        stats = await limits.stats()
        assert {name: tier.active for name, tier in stats.items()} == {
            "tenant": 1,
            "model": 1,
            "all": 1,
        }
        assert stats["tenant"].keys["acme"].active == 1
        assert stats["model"].keys["large"].value == 2
        assert not stats["all"].keys
        assert acquired.slot_number >= 1
    assert all(tier.active == 0 for tier in (await limits.stats()).values())


async def test_nothing_is_held_while_waiting(tiers, look):
    limits = tiers(TENANT, MODEL, ALL)
    async with limits.cm(tenant="a", model="x"), limits.cm(tenant="b", model="x"):
        waiting = asyncio.create_task(limits.acquire(tenant="c", model="x"))
        await look.waiting(limits, "all", 1)
        stats = await limits.stats()
        assert stats["tenant"].keys["c"].active == 0
        assert stats["tenant"].keys["c"].waiting == 1
        # It lacks the model, so what else it wants is free for others.
        async with limits.cm(tenant="c", model="y", timeout=0):
            pass
    async with asyncio.timeout(30):
        await limits.release(await waiting)


async def test_whichever_release_makes_it_fit_wakes_it(tiers, look):
    limits = tiers(TENANT, MODEL, ALL)
    held = [
        await limits.acquire(tenant="a", model="x"),
        await limits.acquire(tenant="b", model="y"),
        await limits.acquire(tenant="c", model="y"),
    ]
    waiting = asyncio.create_task(limits.acquire(tenant="d", model="y"))
    await look.waiting(limits, "all", 1)
    await limits.release(held[0])  # all has a slot now, the model has none
    assert (await limits.stats())["all"].waiting == 1
    await limits.release(held[1])
    async with asyncio.timeout(30):
        await waiting


async def test_a_later_request_that_fits_may_pass(tiers, look):
    limits = tiers(TENANT, ALL)
    async with limits.cm(tenant="a"), limits.cm(tenant="a"):
        waiting = asyncio.create_task(limits.acquire(tenant="a"))
        await look.waiting(limits, "all", 1)
        async with limits.cm(tenant="b", timeout=0):
            pass
        assert not waiting.done()
    async with asyncio.timeout(30):
        await waiting


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "missing: model, tenant"),
        ({"tenant": "a"}, "missing: model"),
        ({"tenant": "a", "model": "x", "all": "y"}, "unknown: all"),
        ({"tenant": "a", "model": 7}, "model"),
    ],
)
async def test_wrong_keys_are_type_errors_that_name_them(tiers, keys, words):
    limits = tiers(TENANT, MODEL, ALL)
    with pytest.raises(TypeError, match=words):
        limits.cm(**keys)
    with pytest.raises(TypeError, match=words):
        await limits.acquire(**keys)


async def test_the_busiest_keys_come_first(tiers):
    limits = tiers(Tier("tenant", 9, keyed=True), Tier("all", 0))
    for tenant, count in (("a", 1), ("b", 3), ("c", 2)):
        for _ in range(count):
            await limits.acquire(tenant=tenant)
    busiest = await limits.busiest("tenant", 2)
    assert [(key, stats.active) for key, stats in busiest] == [("b", 3), ("c", 2)]
    assert limits.busiest_sync("tenant", 1)[0][0] == "b"
    with pytest.raises(TypeError, match="no keys"):
        await limits.busiest("all")
    with pytest.raises(ValueError, match="there is no tier"):
        await limits.busiest("nothing")


async def test_growing_serves_those_who_wait(tiers, look):
    limits = tiers(TENANT, Tier("all", 1))
    await limits.acquire(tenant="a")
    waiting = asyncio.create_task(limits.acquire(tenant="b"))
    await look.waiting(limits, "all", 1)
    await limits.resize("all", 2)
    async with asyncio.timeout(30):
        await waiting
    assert (await limits.stats())["all"].value == 2


async def test_one_key_can_have_a_value_of_its_own(tiers, look):
    limits = tiers(Tier("tenant", 1, keyed=True), Tier("all", 0))
    await limits.acquire(tenant="a")
    waiting = asyncio.create_task(limits.acquire(tenant="a"))
    await look.waiting(limits, "tenant", 1)
    await limits.resize("tenant", 3, key="a")
    async with asyncio.timeout(30):
        await waiting
    await limits.acquire(tenant="b")
    with pytest.raises(AcquireTimeout):
        await limits.acquire(tenant="b", timeout=0)
    assert (await limits.stats())["tenant"].keys["a"].value == 3


async def test_after_a_shrink_nothing_is_granted_until_it_fits(tiers):
    limits = tiers(Tier("all", 3))
    held = [await limits.acquire() for _ in range(3)]
    await limits.resize("all", 1)
    for acquired in held[:2]:
        await limits.release(acquired)
        with pytest.raises(AcquireTimeout):
            await limits.acquire(timeout=0)
    await limits.release(held[2])
    await limits.acquire(timeout=0)


async def test_a_close_refuses_waiters_and_newcomers_and_lets_holders_release(tiers, look):
    limits = tiers(TENANT, Tier("all", 1))
    held = await limits.acquire(tenant="a")
    waiting = asyncio.create_task(limits.acquire(tenant="b"))
    await look.waiting(limits, "all", 1)
    await limits.close()
    with pytest.raises(SemaphoreClosed):
        await waiting
    with pytest.raises(SemaphoreClosed):
        async with limits.cm(tenant="c"):
            pass
    assert await limits.release(held) is True
    assert await limits.release(held) is False
    assert (await limits.stats())["all"].active == 0


async def test_a_cancelled_wait_hands_its_grant_on(tiers, look):
    limits = tiers(Tier("all", 1))
    held = await limits.acquire()
    one, other = (asyncio.create_task(limits.acquire()) for _ in range(2))
    await look.waiting(limits, "all", 2)
    releasing = asyncio.create_task(limits.release(held))
    one.cancel()
    await releasing
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(one, other, return_exceptions=True)
        for outcome in outcomes:
            if not isinstance(outcome, BaseException):
                await limits.release(outcome)
    async with limits.cm(timeout=30):
        assert (await limits.stats())["all"].active == 1


async def test_nobody_starves_however_many_pass(tiers, look):
    """One tenant's tide and another's share no moment in which both tiers are free."""
    limits = tiers(Tier("tenant", 1, keyed=True), Tier("model", 1, keyed=True))
    stop = False

    async def tide(tenant, model):
        while not stop:
            async with limits.cm(tenant=tenant, model=model):
                await asyncio.sleep(0)

    async with asyncio.timeout(60):
        # Two of each, so that there is always one that waits when one releases.
        tides = [
            asyncio.create_task(tide(tenant, model))
            for tenant, model in [("a", "x"), ("a", "y"), ("b", "z"), ("c", "z")] * 2
        ]
        await look.until(lambda: _some_held(limits))
        async with limits.cm(tenant="a", model="z"):
            stop = True
        await asyncio.gather(*tides)


async def _some_held(limits: Tiers) -> bool:
    return (await limits.stats())["model"].active == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("all", -1), ValueError),
        (("all", True), TypeError),
        (("all", 1.5), TypeError),
        (("", 1), ValueError),
        (("two words", 1), ValueError),
        (("timeout", 1), ValueError),
        ((7, 1), TypeError),
        (("all", 1, 7), TypeError),
    ],
)
def test_a_tier_that_makes_no_sense_is_refused(arguments, error):
    with pytest.raises(error):
        Tier(*arguments)


def test_tiers_that_make_no_sense_are_refused():
    with pytest.raises(TypeError):
        Tiers()
    with pytest.raises(TypeError):
        Tiers("all")
    with pytest.raises(ValueError, match="same name"):
        Tiers(ALL, ALL)
    with pytest.raises(TypeError, match="url must be a str or a RedisConfig"):
        Tiers(ALL, url=7)
    with pytest.raises(ValueError, match="url must be one of"):
        Tiers(ALL, url="nowhere")
    with pytest.raises(ValueError, match="a url of this machine must be"):
        Tiers(ALL, url="process://somewhere")
    with pytest.raises(TypeError, match="atomic"):
        Tiers(ALL, atomic=1)


@pytest.mark.parametrize("make", [partial(Tiers, ALL), SlotManager])
def test_tiers_that_would_be_taken_one_after_the_other_are_refused_with_a_recipe(make):
    make(atomic=True)
    with pytest.raises(TypeError, match="'take limits one after the other'"):
        make(atomic=False)


async def test_a_resize_that_makes_no_sense_is_refused(tiers):
    limits = tiers(TENANT, ALL)
    with pytest.raises(ValueError, match="no tier"):
        await limits.resize("nothing", 1)
    with pytest.raises(TypeError, match="no keys"):
        await limits.resize("all", 1, key="a")
    with pytest.raises(ValueError, match="value"):
        await limits.resize("all", -1)
