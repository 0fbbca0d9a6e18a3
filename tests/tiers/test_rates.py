"""Rates: tiers whose slots come back by time, in memory and for the processes of one machine.

Those of a server, which has its own clock, are in `tests/redis/test_rates.py`.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import random

import pytest
from benchmarks._windows import Taken, fullest_window
from tests._effort import seeds
from tests.tiers.conftest import options_of

from slotwise import AcquireTimeout, Rate, RateLimit, Tier, Tiers, ValueConflict, limited
from slotwise._ledger.rate_nodes import RateNode
from slotwise.testing import FakeClock, settle


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"count": 0, "per": 1}, ValueError),
        ({"count": 1.5, "per": 1}, TypeError),
        ({"count": True, "per": 1}, TypeError),
        ({"count": 1, "per": 0}, ValueError),
        ({"count": 1, "per": float("inf")}, ValueError),
        ({"count": 1, "per": float("nan")}, ValueError),
        ({"count": 1, "per": None}, TypeError),
        ({"count": 1, "per": 1 / 3}, ValueError),
        ({"count": 1, "per": 1, "burst": 0}, ValueError),
        ({"count": 1, "per": 1, "burst": 2.0}, TypeError),
        ({"count": 1, "per": 10**9, "burst": 10**9}, ValueError),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused(arguments, error):
    with pytest.raises(error, match=r"rate|per|too fine"):
        Rate(arguments.pop("count"), **arguments)


def test_a_rate_is_counted_in_exact_integers():
    rate = Rate(600, per=60)
    assert (rate.burst, rate.gain, rate.unit) == (60, 1, 100_000)
    assert Rate(5, per=1).burst == 1
    assert Rate(600, per=60, burst=60) == rate
    assert pickle.loads(pickle.dumps(rate)) == rate
    assert str(rate) == "600 per 60 s, burst 60"


@pytest.fixture
def clock():
    with FakeClock() as clock:
        yield clock


async def advance(clock: FakeClock, seconds: float) -> None:
    clock.advance(seconds)
    await settle()


@pytest.fixture(params=["memory", "process"])
def place(request):
    """The arguments of a backend whose clock is ours."""
    options = options_of(request, request.param)
    return {name: options[name] for name in ("url", "name") if name in options}


@pytest.fixture
def limits(place):
    return Tiers(
        Tier("tenant", 5, keyed=True),
        Tier("requests", rate=Rate(10, per=1, burst=4)),
        Tier("tokens", rate=Rate(1000, per=1, burst=1000), keyed="tenant"),
        Tier("all", 20),
        **place,
    )


@pytest.fixture
def rate_limit(place):
    return lambda rate, name=None: RateLimit(name or place.get("name"), rate, url=place.get("url"))


async def level(limits: Tiers, tier: str, key: str | None = None) -> object:
    stats = (await limits.stats())[tier]
    return pytest.approx((stats if key is None else stats.keys[key]).level, abs=0.01)


async def test_all_tiers_are_taken_together_and_rates_come_back_by_time(clock, limits):
    async with limits.cm(tenant="a", tokens=300) as acquired:
        assert acquired.waited == 0
        assert await level(limits, "requests") == 3
        assert await level(limits, "tokens", "a") == 700
        assert (await limits.stats())["all"].active == 1
    assert await level(limits, "requests") == 3
    assert (await limits.stats())["requests"].full_in == pytest.approx(0.1)
    await advance(clock, 0.05)
    assert await level(limits, "requests") == 3.5
    await advance(clock, 10)
    assert await level(limits, "requests") == 4
    assert (await limits.stats())["requests"].full_in == 0


async def test_a_request_that_lacks_only_time_is_woken_exactly_then(clock, limits):
    for _ in range(4):
        await limits.release(await limits.acquire(tenant="a"))
    with pytest.raises(AcquireTimeout, match=r"requests: 0\.0 left of 10 per 1 s"):
        await limits.acquire(tenant="b", timeout=0)
    waiting = asyncio.create_task(limits.acquire(tenant="b"))
    await settle()
    await advance(clock, 0.0999)
    assert not waiting.done()
    await advance(clock, 0.0002)
    acquired = await asyncio.wait_for(waiting, 30)
    assert acquired.waited == pytest.approx(0.1, abs=0.001)


async def test_a_costly_request_is_not_passed_by_cheap_ones(clock, rate_limit):
    limit = rate_limit(Rate(10, per=1, burst=10))
    await limit.acquire(cost=5)
    costly = asyncio.create_task(limit.acquire(cost=10))
    await settle()
    assert await limit.try_acquire() is None
    cheap = asyncio.create_task(limit.acquire())
    await settle()
    await advance(clock, 0.501)
    assert costly.done()
    assert not cheap.done()
    await advance(clock, 0.101)
    assert cheap.done()


async def test_what_was_not_used_is_given_back_and_more_becomes_debt(clock, limits):
    async with limits.cm(tenant="a", tokens=1000) as acquired:
        acquired.settle(tokens=400)
        assert await level(limits, "tokens", "a") == 600
        await acquired.settle(tokens=0)
        assert await level(limits, "tokens", "a") == 1000
        acquired.settle(tokens=2500)  # the last call wins
    assert await level(limits, "tokens", "a") == -1500
    assert await limits.try_acquire(tenant="a") is None
    async with limits.cm(tenant="b", timeout=0):
        pass
    waiting = asyncio.create_task(limits.acquire(tenant="a"))
    await settle()
    await advance(clock, 1.5)
    assert not waiting.done()
    await limits.settle(acquired, tokens=1000)
    await asyncio.wait_for(waiting, 30)
    await limits.settle(acquired, tokens=9000)
    await limits.refill("tokens", key="a")
    assert await level(limits, "tokens", "a") == 1000


async def test_an_acquisition_can_be_settled_for_a_minute_after_its_end(clock, limits):
    async with limits.cm(tenant="a", tokens=10) as acquired:
        pass
    await advance(clock, 59)
    await limits.settle(acquired.acquisition_id, tokens=20)
    assert await level(limits, "tokens", "a") == 990
    await advance(clock, 2)
    with pytest.raises(LookupError, match="too long ago"):
        await limits.settle(acquired.acquisition_id, tokens=0)
    with pytest.raises(LookupError):
        limits.settle_sync("nobody", tokens=0)


async def test_a_wait_that_ends_without_a_grant_leaves_the_buckets_as_before(clock, limits):
    held = [await limits.acquire(tenant="a") for _ in range(3)]
    await limits.acquire({"all": 17}, tenant="b")
    waiting = asyncio.create_task(limits.acquire(tenant="c"))
    await settle()
    before = await level(limits, "requests"), await level(limits, "tokens", "c")
    await limits.release(held[0])  # granted, not yet delivered
    waiting.cancel()
    await settle()
    assert (await level(limits, "requests"), await level(limits, "tokens", "c")) == before
    assert await limits.try_acquire(tenant="c") is None  # of requests nothing is left
    with pytest.raises(AcquireTimeout):
        await limits.acquire(tenant="c", timeout=0)
    assert (await limits.stats())["all"].active == 19


async def test_another_rate_keeps_the_level_and_refuses_who_can_never_fit(clock, limits):
    await limits.acquire(tenant="a", tokens=900)
    waiting = asyncio.create_task(limits.acquire(tenant="a", tokens=800))
    await settle()
    await limits.resize("tokens", Rate(100, per=1, burst=500), key="a")
    with pytest.raises(ValueError, match="a cost of 800 requested of tokens 'a'"):
        await waiting
    assert await level(limits, "tokens", "a") == 100
    await advance(clock, 1)
    assert await level(limits, "tokens", "a") == 200
    with pytest.raises(ValueError, match="burst of 500"):
        await limits.acquire(tenant="a", tokens=501)
    await limits.acquire(tenant="b", tokens=1000, timeout=0)


@pytest.mark.parametrize(
    ("costs", "error", "words"),
    [
        ({"tokens": 0}, ValueError, "cost of 'tokens'"),
        ({"tokens": -1}, ValueError, "cost of 'tokens'"),
        ({"tokens": 1.5}, TypeError, "cost of 'tokens'"),
        ({"tokens": 1001}, ValueError, "a cost of 1001"),
        ({"costs": {"all": 2}}, TypeError, "no rate"),
        ({"costs": {"nothing": 2}}, ValueError, "no tier"),
        ({"tokens": 2, "costs": {"tokens": 2}}, TypeError, "twice"),
        ({"slots": {"tokens": 2}}, ValueError, "is a rate"),
    ],
)
async def test_costs_that_make_no_sense_are_refused_and_nothing_is_taken(
    limits, costs, error, words
):
    with pytest.raises(error, match=words):
        await limits.acquire(tenant="a", **costs)
    assert await level(limits, "requests") == 4
    assert (await limits.stats())["all"].active == 0


async def test_settling_what_makes_no_sense_is_refused(limits):
    acquired = await limits.acquire(tenant="a", tokens=10)
    for costs, error in (
        ({"tokens": -1}, ValueError),
        ({"tokens": 1.5}, TypeError),
        ({"all": 1}, TypeError),
    ):
        with pytest.raises(error):
            acquired.settle(**costs)
        with pytest.raises(error):
            await limits.settle(acquired, **costs)
    with pytest.raises(TypeError, match="no rate"):
        await Tiers(Tier("all", 1)).acquire(costs={"all": 1})
    with pytest.raises(TypeError, match="is not a rate"):
        (await Tiers(Tier("all", 1)).acquire()).settle(all=1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": 1, "rate": Rate(1, per=1)}, TypeError),
        ({}, TypeError),
        ({"rate": 10}, TypeError),
        ({"value": 1, "keyed": 7}, TypeError),
    ],
)
def test_a_tier_with_a_rate_that_makes_no_sense_is_refused(arguments, error):
    with pytest.raises(error):
        Tier("tokens", **arguments)


def test_tiers_with_rates_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="which has none"):
        Tiers(Tier("tokens", rate=Rate(1, per=1), keyed="tenant"))
    for name in ("costs", "priority", "on_full"):
        with pytest.raises(ValueError, match="has that parameter"):
            Tier(name, 1)


async def test_a_bucket_that_is_not_full_is_not_forgotten_with_its_object(clock, rate_limit):
    rate = Rate(10, per=1, burst=2)
    first = rate_limit(rate, "kept")
    await first.acquire(cost=2)
    del first
    assert await rate_limit(rate, "kept").try_acquire() is None
    with pytest.raises(ValueConflict, match="kept"):
        await rate_limit(Rate(20, per=1), "kept").acquire()
    await advance(clock, 1)
    gc.collect()
    assert await rate_limit(Rate(20, per=1), "kept").try_acquire() is not None


async def test_keys_of_a_rate_are_forgotten_when_they_are_full(clock, place):
    user = Tier("user", rate=Rate(1, per=1), keyed=True)
    limits = Tiers(user, Tier("all", 0), max_idle_keys=5, **place)
    for n in range(200):
        async with limits.cm(user=f"u{n}", costs={"user": 1}):
            pass
    assert len((await limits.stats())["user"].keys) == 200
    await advance(clock, 2)
    async with limits.cm(user="last"):
        pass
    assert len((await limits.stats())["user"].keys) <= 6


async def test_a_rate_limit_is_a_limit(clock, rate_limit):
    limit = rate_limit(Rate(2, per=1, burst=2))
    assert not await limit.locked()
    async with limit.cm(cost=2) as acquired:
        assert await limit.locked()
    assert await limit.release(acquired) is False
    assert (await limit.level()).level == pytest.approx(0)
    await limit.settle(acquired, 1)
    assert (await limit.level()).level == pytest.approx(1)
    calls = []

    @limited(limit)
    async def call(number):
        calls.append(number)

    await call(1)
    waiting = asyncio.create_task(call(2))
    await settle()
    assert calls == [1]
    await advance(clock, 0.501)
    await waiting
    await advance(clock, 1)
    async with limit:
        assert (await limit.stats()).acquired_slots == 1
    with pytest.raises(ValueError, match="burst of 2"):
        await limit.acquire(cost=3)
    await limit.resize(Rate(5, per=1, burst=5))
    with pytest.raises(TypeError):
        RateLimit("crm", 5)


@pytest.fixture
def taken(monkeypatch) -> dict[Rate, list[Taken]]:
    """What the ledgers of this process take of each rate, in the order in which they do it."""
    taken: dict[Rate, list[Taken]] = {}
    usual, grants = RateNode.charge, RateNode.take
    is_grant = False

    def take(node: RateNode, need: int, now: float = 0.0) -> object:
        nonlocal is_grant
        is_grant = True
        try:
            return grants(node, need, now)
        finally:
            is_grant = False

    def charge(node: RateNode, units: int, now: float) -> None:
        taken.setdefault(node.rate, []).append(Taken(now, units, is_grant))
        usual(node, units, now)

    monkeypatch.setattr(RateNode, "take", take)
    monkeypatch.setattr(RateNode, "charge", charge)
    return taken


@pytest.mark.parametrize("seed", seeds(2, 6))
async def test_no_window_has_more_than_the_rate_and_the_burst(clock, place, seed, taken):
    """Minutes of virtual time: random costs, settles and holds, and nearly all of it is used."""
    dice = random.Random(seed)
    rate = Rate(100, per=1, burst=50)
    limits = Tiers(Tier("tokens", rate=rate), Tier("all", 8), **place)

    async def work() -> None:
        while clock.now() < end:
            async with limits.cm(tokens=dice.randint(1, 50)) as acquired:
                await asyncio.sleep(0)
                if dice.random() < 0.5:
                    acquired.settle(tokens=dice.randint(0, 60))

    start = clock.now()
    end = start + 120
    tasks = [asyncio.create_task(work()) for _ in range(12)]
    while not all(task.done() for task in tasks):
        await settle()
        await advance(clock, 0.05)
    assert fullest_window(taken[rate], rate.count / rate.per, rate.burst) <= 1.0
    assert sum(each.units for each in taken[rate]) >= 0.97 * 100 * (taken[rate][-1].at - start)


async def test_a_rate_limit_has_head_starts_and_refuses_two_costs(clock, rate_limit):
    limit, entered = rate_limit(Rate(1, per=1, burst=1)), []

    async def ask(who: str, **options: float) -> None:
        await limit.acquire(**options)
        entered.append(who)

    await ask("first")
    tasks = [asyncio.create_task(ask("patient"))]
    await settle()
    tasks.append(asyncio.create_task(ask("urgent", priority=30)))
    await settle()
    for wrong in (limit.acquire(2, cost=1), limit.try_acquire(2, cost=1)):
        with pytest.raises(TypeError, match="only one"):
            await wrong
    with pytest.raises(ValueError, match="finite"):
        await limit.acquire(priority=float("nan"))
    await advance(clock, 1)
    await advance(clock, 1)
    await asyncio.gather(*tasks)
    assert entered == ["first", "urgent", "patient"]
