"""Fair order and head starts through Tiers: arguments, conflicts, and who is served next."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from slotwise import Rate, Tier, Tiers, ValueConflict

TENANT, ALL = Tier("tenant", 0, keyed=True), Tier("all", 1)


def fair(*tiers, **options):
    given = {"order": "fair", "fair_by": "tenant", **options}
    return Tiers(*(tiers or (TENANT, ALL)), **given)


class Served:
    """Tasks that take a slot one after the other, and the order in which they got it."""

    def __init__(self, tiers):
        self.tiers = tiers
        self.keys = []
        self.tasks = []

    async def ask(self, key, *, waits=True, **options):
        before = await self.waiting()
        self.tasks.append(asyncio.create_task(self.work(key, **options)))
        while waits and await self.waiting() == before:  # so that they come in this order
            await asyncio.sleep(0.002)

    async def waiting(self):
        return len(await self.tiers.waiters())

    async def work(self, key, **options):
        acquired = await self.tiers.acquire(tenant=key, **options)
        self.keys.append(options.get("label", key))
        await self.tiers.release(acquired)

    async def all(self, holder):
        await self.tiers.release(holder)
        await asyncio.wait_for(asyncio.gather(*self.tasks), 30)
        return self.keys


async def test_a_tenant_that_asks_once_does_not_wait_behind_the_queue_of_another(anywhere):
    tiers = fair(**anywhere)
    holder = await tiers.acquire(tenant="a")
    served = Served(tiers)
    for _ in range(8):
        await served.ask("a")
    await served.ask("b")
    assert "b" in (await served.all(holder))[:2]


async def test_a_head_start_passes_those_who_have_waited_for_less(anywhere):
    tiers = Tiers(TENANT, ALL, **anywhere)
    holder = await tiers.acquire(tenant="a")
    served = Served(tiers)
    await served.ask("a", label="first")
    await served.ask("a", label="second")
    await served.ask("a", label="urgent", priority=3600)
    await served.ask("b", label="other, urgent too", priority=1800)
    await served.ask("b", label="later", priority=-3600)
    await served.ask("b", label="last")
    assert await served.all(holder) == [
        *("urgent", "other, urgent too", "first", "second", "last", "later")
    ]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": "lifo"}, ValueError, "'fifo' or 'fair'"),
        ({"order": 1}, TypeError, "'fifo' or 'fair'"),
        ({"order": "fair"}, TypeError, "needs fair_by"),
        ({"order": "fair", "fair_by": "user"}, ValueError, "there is no tier"),
        ({"order": "fair", "fair_by": "all"}, ValueError, "keys of its own"),
        ({"order": "fair", "fair_by": 1}, TypeError, "name of a tier"),
        ({"fair_by": "tenant"}, TypeError, "need order='fair'"),
        ({"weight": 2}, TypeError, "need order='fair'"),
        ({"order": "fair", "fair_by": "tenant", "weight": 0}, ValueError, "weight"),
        ({"order": "fair", "fair_by": "tenant", "weight": math.nan}, ValueError, "weight"),
        ({"order": "fair", "fair_by": "tenant", "weight": "x"}, TypeError, "weight"),
        ({"order": "fair", "fair_by": "tenant", "fair_cost": "all"}, ValueError, "with a rate"),
    ],
)
def test_orders_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Tiers(TENANT, ALL, **options)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, "x", None, True])
async def test_a_weight_that_makes_no_sense_is_the_callers_error_and_nothing_is_taken(
    anywhere, weight
):
    tiers = fair(**anywhere, weight=lambda key: weight if key == "b" else 1)
    holder = await tiers.acquire(tenant="a")
    with pytest.raises((TypeError, ValueError), match="weight of tenant 'b'"):
        await tiers.acquire(tenant="b")
    assert await tiers.waiters() == []
    await tiers.release(holder)
    assert (await tiers.stats())["all"].active == 0


async def test_other_rules_for_a_name_are_a_conflict_that_names_the_difference(anywhere):
    anywhere.setdefault("name", "t")
    first = fair(**anywhere)
    holder = await first.acquire(tenant="a")
    with pytest.raises(ValueConflict, match="in fair order"):
        await Tiers(TENANT, ALL, **anywhere).acquire(tenant="a")
    await first.release(holder)


async def test_what_is_reserved_of_a_rate_can_be_what_counts(anywhere):
    tiers = Tiers(
        TENANT,
        Tier("tokens", rate=Rate(10_000, per=1, burst=1000)),
        ALL,
        order="fair",
        fair_by="tenant",
        fair_cost="tokens",
        **anywhere,
    )
    holder = await tiers.acquire(tenant="x")
    served = Served(tiers)
    for key, cost in (*[("a", 90)] * 4, *[("b", 30)] * 12):
        await served.ask(key, tokens=cost)
    order = await served.all(holder)
    assert abs(order[:8].count("b") - 6) <= 1


async def backlogged(tiers, holder, asked):
    """All of ``asked`` (key and slots) wait before the first is granted: the order of grants."""
    order = []

    async def work(key, slots):
        async with tiers.cm(tenant=key, slots={"all": slots}) as acquired:
            order.append((acquired.fencing_token, key, slots))

    tasks = [asyncio.create_task(work(key, slots)) for key, slots in asked]
    while len(await tiers.waiters()) < len(asked):
        await asyncio.sleep(0.01)
    await tiers.release(holder)
    await asyncio.wait_for(asyncio.gather(*tasks), 50)
    order.sort(key=lambda each: each[0] or 0)  # in memory they are told in the order of grants
    return [(key, slots) for _, key, slots in order]


def while_both_wait(served, one, other):
    """What was granted until one of two keys had its last grant."""
    keys = [key for key, _ in served]
    return served[: min(len(keys) - keys[::-1].index(key) for key in (one, other))]


async def test_weights_hold_to_one_grant_in_any_hundred_while_both_wait(anywhere):
    tiers = fair(TENANT, Tier("all", 2), **anywhere, weight=lambda key: {"a": 3, "b": 1}[key])
    holder = await tiers.acquire(tenant="a", slots={"all": 2})
    served = await backlogged(tiers, holder, [("b", 1)] * 60 + [("a", 1)] * 180)
    keys = [key for key, _ in while_both_wait(served, "a", "b")]
    assert len(keys) >= 230
    for start in range(len(keys) - 100):
        assert abs(keys[start : start + 100].count("a") - 75) <= 1


async def test_backlogged_keys_differ_by_one_request_of_each_at_most(anywhere):
    """|W_f/w_f - W_g/w_g| <= c_f/w_f + c_g/w_g, in every stretch of grants while both wait."""
    dice, weights = random.Random(3), {"a": 3, "b": 1, "c": 0.7}
    tiers = fair(TENANT, Tier("all", 5), **anywhere, weight=weights.get)
    holder = await tiers.acquire(tenant="a", slots={"all": 5})
    asked = [(key, dice.randint(1, 4)) for key in "abc" for _ in range(25)]
    dice.shuffle(asked)
    served = await backlogged(tiers, holder, asked)
    for one, other in ("ab", "bc", "ac"):
        both = while_both_wait(served, one, other)
        assert len(both) > 25
        for start in range(len(both)):
            got = {one: 0.0, other: 0.0}
            for key, slots in both[start:]:
                if key in got:
                    got[key] += slots / weights[key]
                    bound = 4 / weights[one] + 4 / weights[other]
                    assert abs(got[one] - got[other]) <= bound + 1e-9
