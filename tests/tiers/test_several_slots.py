"""Several slots of a path: of every tier, or of some."""

from __future__ import annotations

import asyncio

import pytest

from slotwise import AcquireTimeout, Rate, Tier, Tiers

TENANT, GPU, ALL = Tier("tenant", 3, keyed=True), Tier("gpu", 4, keyed=True), Tier("all", 6)


async def _active(limits: Tiers) -> dict[str, int]:
    return {name: tier.active for name, tier in (await limits.stats()).items()}


async def test_a_number_of_slots_is_taken_of_every_tier(tiers):
    limits = tiers(TENANT, GPU, ALL)
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
    async with Tiers(TENANT, GPU, ALL, **anywhere) as limits:
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


async def test_those_behind_a_large_request_go_on_when_it_leaves(tiers, look):
    limits = tiers(Tier("tenant", 0, keyed=True), Tier("all", 2))
    await limits.acquire(tenant="a")
    large = asyncio.create_task(limits.acquire(2, tenant="a"))
    await look.waiting(limits, "all", 1)
    small = [asyncio.create_task(limits.acquire(tenant=t)) for t in ("a", "b")]
    await look.waiting(limits, "all", 3)
    large.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait(small, return_when=asyncio.FIRST_COMPLETED)
    assert small[0].done()  # it is older, and of the same path
    small[1].cancel()
    await asyncio.wait(small)


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
    limits = tiers(TENANT, GPU, ALL)
    with pytest.raises(error, match=words):
        await limits.acquire(slots, tenant="a", gpu="x")
    with pytest.raises(error, match=words):
        async with limits.cm(slots, tenant="a", gpu="x"):
            pass
    assert await _active(limits) == {"tenant": 0, "gpu": 0, "all": 0}


async def test_a_shrink_refuses_waiters_that_can_never_fit(tiers, look):
    limits = tiers(TENANT, GPU, ALL)
    held = await limits.acquire(2, tenant="a", gpu="x")
    large = asyncio.create_task(limits.acquire(3, tenant="a", gpu="x"))
    await look.waiting(limits, "all", 1)
    small = asyncio.create_task(limits.acquire(1, tenant="a", gpu="x"))
    await look.waiting(limits, "all", 2)
    await limits.resize("tenant", 2, key="a")
    with pytest.raises(ValueError, match=r"3 slots requested of tenant 'a'.*has 2"):
        await large
    await limits.release(held)
    async with asyncio.timeout(30):
        await small


async def test_newcomers_get_numbers_up_to_the_value_after_a_shrink(tiers):
    limits = tiers(Tier("all", 5))
    held = [await limits.acquire() for _ in range(5)]
    await limits.resize("all", 2)
    for each in held:
        await limits.release(each)
    assert {(await limits.acquire()).slot_number for _ in range(2)} == {1, 2}
    await limits.resize("all", 4)
    assert {(await limits.acquire()).slot_number for _ in range(2)} == {3, 4}


def test_threads_take_several_slots(anywhere):
    limits = Tiers(TENANT, ALL, **anywhere)
    with limits.cm(2, tenant="a"):
        assert limits.stats_sync()["all"].active == 2
        assert limits.try_acquire_sync(2, tenant="a") is None
        with pytest.raises(AcquireTimeout):
            limits.acquire_sync(2, timeout=0.01, tenant="a")
    assert limits.stats_sync()["all"].active == 0
    limits.close_sync()


async def test_holders_show_what_was_settled(tiers):
    limits = tiers(Tier("tokens", rate=Rate(1, per=3600, burst=50)), Tier("all", 2))
    async with limits.cm(tokens=20) as acquired, limits.cm(tokens=5):
        await acquired.settle(tokens=30)
        held = {each.acquisition_id: each.needs for each in await limits.holders()}
        assert held.pop(acquired.acquisition_id) == {"tokens": 30, "all": 1}
        assert [*held.values()] == [{"tokens": 5, "all": 1}]
