"""Tiers, the general form, on every backend."""

from __future__ import annotations

import asyncio
import pickle
import random
from functools import partial

import pytest

from slotwise import AcquireTimeout, Rate, SlotManager, Tier, Tiers

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


# ------------------------------------------------- values that are functions of keys


PLANS = {"free": 1, "pro": 3, "all you can eat": 0}


def plan_of(tenant: str) -> int:
    return PLANS[tenant]


async def test_each_key_has_the_value_that_the_function_returns(anywhere):
    async with Tiers(Tier("tenant", plan_of, keyed=True), Tier("all", 9), **anywhere) as limits:
        held = [await limits.acquire(tenant="pro", timeout=0) for _ in range(3)]
        with pytest.raises(AcquireTimeout, match="tenant 'pro'"):
            await limits.acquire(tenant="pro", timeout=0)
        await limits.acquire(tenant="free", timeout=0)
        assert await limits.try_acquire(tenant="free") is None
        for _ in range(4):
            await limits.acquire(tenant="all you can eat", timeout=0)
        stats = (await limits.stats())["tenant"]
        assert {key: each.value for key, each in stats.keys.items()} == PLANS
        assert stats.value == 0
        for each in held:
            await limits.release(each)
        with pytest.raises(ValueError, match="has 3"):
            await limits.acquire({"tenant": 4}, tenant="pro")


async def test_the_function_is_asked_when_a_key_appears_and_a_resize_wins(anywhere):
    asked = []

    def value_of(tenant: str) -> int:
        asked.append(tenant)
        return 1

    async with Tiers(Tier("tenant", value_of, keyed=True), max_idle_keys=1, **anywhere) as limits:
        for _ in range(3):
            async with limits.cm(tenant="a"):
                assert await limits.try_acquire(tenant="a") is None
        assert asked == ["a"]
        for tenant in ("b", "c"):
            async with limits.cm(tenant=tenant):
                pass
        async with limits.cm(tenant="a"):  # it was forgotten
            pass
        assert asked == ["a", "b", "c", "a"]
        await limits.resize("tenant", 2, key="b")
        async with limits.cm(tenant="b"), limits.cm(tenant="b", timeout=0):
            assert await limits.try_acquire(tenant="b") is None
        with pytest.raises(TypeError, match="resize a key"):
            await limits.resize("tenant", 2)


@pytest.mark.parametrize(
    ("answer", "error"), [(None, TypeError), (1.5, TypeError), (-1, ValueError), (True, TypeError)]
)
async def test_a_function_that_returns_nonsense_fails_its_caller_and_nothing_is_taken(
    anywhere, answer, error
):
    tier = Tier("tenant", lambda _: answer, keyed=True)
    async with Tiers(tier, Tier("all", 1), **anywhere) as limits:
        for _ in range(2):
            with pytest.raises(error, match="the value of tier 'tenant' for 'a'"):
                await limits.acquire(tenant="a")
        assert (await limits.stats())["all"].active == 0


async def test_a_function_that_fails_fails_its_caller_and_nothing_is_taken(anywhere):
    async with Tiers(Tier("tenant", plan_of, keyed=True), Tier("all", 1), **anywhere) as limits:
        with pytest.raises(KeyError, match="nobody"):
            await limits.acquire(tenant="nobody")
        async with limits.cm(tenant="free"):
            pass


def test_a_function_needs_keys():
    with pytest.raises(TypeError, match="keyed=True"):
        Tier("all", plan_of)


def test_tiers_with_a_function_can_be_pickled(server):
    limits = Tiers(Tier("tenant", plan_of, keyed=True), url=server.url, name="by key")
    with limits.cm(tenant="free"):
        assert pickle.loads(pickle.dumps(limits)).try_acquire_sync(tenant="free") is None
    assert "tenant by key" in repr(limits)
    limits.close_sync()


# ------------------------------------------------------------------- several slots


OF_THREE, GPU, OF_SIX = Tier("tenant", 3, keyed=True), Tier("gpu", 4, keyed=True), Tier("all", 6)


async def _active(limits: Tiers) -> dict[str, int]:
    return {name: tier.active for name, tier in (await limits.stats()).items()}


async def test_a_number_of_slots_is_taken_of_every_tier(tiers):
    limits = tiers(OF_THREE, GPU, OF_SIX)
    async with limits.cm(3, tenant="a", gpu="x") as acquired:
        assert await _active(limits) == {"tenant": 3, "gpu": 3, "all": 3}
        assert acquired.slot_number == 1
        one = await limits.acquire(tenant="b", gpu="x")
        assert one.slot_number == 4
        [holder, _] = await limits.holders()
        assert (holder.slots, holder.needs) == (3, {"tenant": 3, "gpu": 3, "all": 3})
    assert await _active(limits) == {"tenant": 1, "gpu": 1, "all": 1}
    await limits.release(one)
    assert await _active(limits) == {"tenant": 0, "gpu": 0, "all": 0}


async def test_slots_by_tier_take_one_of_the_others(anywhere):
    async with Tiers(OF_THREE, GPU, OF_SIX, **anywhere) as limits:
        acquired = await limits.acquire({"gpu": 2}, tenant="a", gpu="x", label="train")
        assert await _active(limits) == {"tenant": 1, "gpu": 2, "all": 1}
        [holder] = await limits.holders()
        assert (holder.slots, holder.label) == (1, "train")
        assert holder.needs == {"tenant": 1, "gpu": 2, "all": 1}
        with pytest.raises(AcquireTimeout, match="gpu 'x'"):
            await limits.acquire({"gpu": 3}, timeout=0, tenant="b", gpu="x")
        assert await limits.try_acquire({"gpu": 3}, tenant="b", gpu="x") is None
        assert await limits.release(acquired)
        path = limits.at(tenant="a", gpu="x")
        async with path.cm(slots=3):
            assert await _active(limits) == {"tenant": 3, "gpu": 3, "all": 3}
        assert await _active(limits) == {"tenant": 0, "gpu": 0, "all": 0}


async def test_a_large_request_is_not_starved_by_small_ones(tiers, look):
    limits = tiers(Tier("tenant", 0, keyed=True), Tier("all", 3))
    held = [await limits.acquire(tenant=f"t{n}") for n in range(3)]
    large = asyncio.create_task(limits.acquire({"all": 3}, tenant="large"))
    await look.waiting(limits, "all", 1)
    assert await limits.at(tenant="small").locked()
    for each in held[:2]:
        await limits.release(each)
        # There is a free slot now, but somebody waits for more of them.
        assert await limits.try_acquire(tenant="small") is None
        assert await limits.at(tenant="small").locked()
    small = asyncio.create_task(limits.acquire(tenant="small"))
    await look.waiting(limits, "all", 2)
    await limits.release(held[2])
    async with asyncio.timeout(30):
        acquired = await large
        assert not small.done()
        await limits.release(acquired)
        await small


@pytest.mark.parametrize(
    ("slots", "error", "words"),
    [
        (4, ValueError, "4 slots requested of tenant 'a'"),
        ({"all": 7}, ValueError, "7 slots requested of all"),
        (0, ValueError, "slots"),
        (True, TypeError, "slots"),
        (1.0, TypeError, "slots"),
        ({"gpu": 0}, ValueError, "the slots of tier 'gpu'"),
        ({"gpu": "2"}, TypeError, "the slots of tier 'gpu'"),
        ({"nothing": 2}, ValueError, "no tier 'nothing'"),
    ],
)
async def test_slots_that_make_no_sense_are_refused_and_nothing_is_taken(
    tiers, slots, error, words
):
    limits = tiers(OF_THREE, GPU, OF_SIX)
    with pytest.raises(error, match=words):
        await limits.acquire(slots, tenant="a", gpu="x")
    with pytest.raises(error, match=words):
        async with limits.cm(slots, tenant="a", gpu="x"):
            pass
    assert await _active(limits) == {"tenant": 0, "gpu": 0, "all": 0}


async def test_holders_show_what_was_settled(tiers):
    limits = tiers(Tier("tokens", rate=Rate(1, per=3600, burst=50)), Tier("all", 2))
    async with limits.cm(tokens=20) as acquired, limits.cm(tokens=5):
        await acquired.settle(tokens=30)
        held = {each.acquisition_id: each.needs for each in await limits.holders()}
        assert held.pop(acquired.acquisition_id) == {"tokens": 30, "all": 1}
        assert [*held.values()] == [{"tokens": 5, "all": 1}]


# --------------------------------------- who enters first (see tests/contract/test_order.py)


async def cm(limits, user, name, entered):
    async with limits.cm(user=user):
        entered.append(name)


async def acquire(limits, user, name, entered):
    acquired = await limits.acquire(user=user, timeout=1000)
    entered.append(name)
    await limits.release(acquired)


async def try_acquire(limits, user, name, entered):
    acquired = await limits.try_acquire(user=user)
    assert acquired is not None
    entered.append(name)
    await limits.release(acquired)


@pytest.mark.parametrize("waits_for", ["user", "all"])
@pytest.mark.parametrize("newcomer", [cm, acquire, try_acquire])
@pytest.mark.parametrize("way", [cm, acquire])
async def test_a_newcomer_does_not_enter_before_a_waiter_that_was_granted_earlier(
    tiers, look, way, newcomer, waits_for
):
    wide = 9 if waits_for == "user" else 2
    limits = tiers(Tier("user", 2, keyed=True), Tier("all", wide))
    entered: list[str] = []
    held = [await limits.acquire(user="a") for _ in range(2)]
    waiter = asyncio.create_task(way(limits, "a" if waits_for == "user" else "b", "w", entered))
    await look.waiters(limits, 1)
    for each in held:
        limits.release_sync(each)  # one slot for the waiter, the other is free
    await newcomer(limits, "a" if waits_for == "user" else "c", "n", entered)
    await waiter
    assert entered == ["w", "n"]


async def test_waiters_of_one_path_enter_in_the_order_of_their_arrival(tiers, look):
    dice = random.Random(7)
    limits = tiers(Tier("user", 3, keyed=True), Tier("all", 2))
    for _ in range(3):
        entered: list[int] = []
        held = [await limits.acquire(user="a") for _ in range(2)]
        tasks = []
        for number in range(6):
            tasks.append(
                asyncio.create_task(dice.choice([cm, acquire])(limits, "a", number, entered))
            )
            await look.waiters(limits, number + 1)
        gone = dice.randrange(6)
        tasks[gone].cancel()
        await look.waiters(limits, 5)
        for each in held:
            await limits.release(each)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert entered == [number for number in range(6) if number != gone]
