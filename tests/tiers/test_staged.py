"""The document's order, stage by stage: what is held meanwhile, and how it is given back."""

from __future__ import annotations

import asyncio

import pytest

from slotwise import AcquireTimeout, MemorySemaphore, SlotManager, Tier, Tiers
from slotwise._core.paths import TierSpec
from slotwise.tiers._staged import StagedPaths
from slotwise.tiers._stages import SemaphoreSource


def staged(value=1):
    return Tiers(Tier("user", 1, keyed=True), Tier("all", value), atomic=False)


def active(limits):
    return {name: tier.active for name, tier in limits.stats_sync().items()}


async def test_the_narrow_slot_is_held_while_waiting_for_the_wide_one(settle):
    limits = staged()
    first = await limits.acquire(user="a")
    waiting = asyncio.create_task(limits.acquire(user="b"))
    await settle()
    stats = await limits.stats()
    assert stats["user"].keys["b"].active == 1
    assert stats["all"].waiting == 1
    with pytest.raises(AcquireTimeout, match="user 'b'"):
        await limits.acquire(user="b", timeout=0)
    await limits.release(first)
    second = await waiting
    assert first.waited == 0 < second.waited
    await limits.release(second)
    assert active(limits) == {"user": 0, "all": 0}


@pytest.mark.parametrize("how", ["cancel", "timeout", "close"])
async def test_failing_at_the_second_stage_gives_the_first_back(settle, how):
    limits = staged()
    held = await limits.acquire(user="a")
    waiting = asyncio.create_task(
        limits.acquire(user="b", timeout=0.05 if how == "timeout" else None)
    )
    await settle()
    if how == "cancel":
        waiting.cancel()
    elif how == "close":
        await limits.close()
    async with asyncio.timeout(30):
        await asyncio.wait([waiting])
    assert waiting.cancelled() or waiting.exception() is not None
    stats = await limits.stats()
    assert (stats["user"].keys["b"].active, stats["all"].waiting) == (0, 0)
    await limits.release(held)
    assert active(limits) == {"user": 0, "all": 0}


async def test_slots_are_released_in_the_order_they_were_acquired():
    order = []

    class Told(MemorySemaphore):
        __slots__ = ()

        async def acquire(self, slots=1, **options):
            order.append(f"+{self.name}")
            return await super().acquire(slots, **options)

        async def release(self, acquisition):
            order.append(f"-{self.name}")
            return await super().release(acquisition)

    specs = [TierSpec("user", 1, True), TierSpec("all", 1, False)]
    source = SemaphoreSource(
        None, lambda name, value: Told(name=name, value=value), MemorySemaphore, {}
    )
    stages = StagedPaths(specs, source, name="told")
    acquired = await stages.acquire(("alice", None), timeout=None)
    assert await stages.release(acquired.acquisition_id) is True
    assert await stages.release(acquired.acquisition_id) is False
    assert order == ["+told:user:alice", "+told:all", "-told:user:alice", "-told:all"]


async def test_the_timeout_covers_both_stages(settle):
    limits = staged()
    await limits.acquire(user="a")
    first = asyncio.create_task(limits.acquire(user="b", timeout=0.2))
    await settle()
    with pytest.raises(AcquireTimeout):
        await limits.acquire(user="b", timeout=0.05)  # at the first stage
    with pytest.raises(AcquireTimeout, match="no slot of all"):
        await first


async def test_a_staged_tier_can_be_resized_and_lose_its_limit(settle):
    limits = staged()
    await limits.acquire(user="a")
    waiting = asyncio.create_task(limits.acquire(user="b"))
    await settle()
    await limits.resize("all", 2)
    await asyncio.wait_for(waiting, 30)
    await limits.resize("user", 2, key="a")
    await limits.resize("all", 3)
    await limits.acquire(user="a", timeout=0)
    limits.resize_sync("user", 3)
    await limits.resize("all", 0)
    held = [await limits.acquire(user=str(number), timeout=0) for number in range(5)]
    stats = (await limits.stats())["all"]
    assert (stats.active, stats.value) == (8, 0)
    await limits.resize("all", 3)
    assert await limits.try_acquire(user="more") is None
    for each in held:
        await limits.release(each)


async def test_a_user_is_not_forgotten_between_look_up_and_acquire(settle):
    slots = SlotManager(atomic=False, max_idle_users=0, cleanup_interval=0, max_uploads=1)
    async with slots.upload("a"):
        waiting = asyncio.create_task(slots.acquire_upload_slot("b"))
        await settle()
        assert await slots.cleanup_idle_user_slots(0) == 0
        assert (await slots.stats()).user_slots_count == 2
    await slots.release_upload_slot("b", await waiting)
    assert (await slots.stats()).user_slots_count == 0


async def test_a_task_can_not_be_cancelled_for_a_ttl_in_stages():
    with pytest.raises(TypeError, match="cancel_task_after_ttl"):
        Tiers(Tier("all", 1), atomic=False, ttl=1, cancel_task_after_ttl=True)


async def test_a_try_may_be_made_in_an_event_loop():
    limits = staged()
    acquired = limits.try_acquire_sync(user="a")
    assert limits.try_acquire_sync(user="a") is None
    assert limits.try_acquire_sync(user="b") is None
    assert limits.release_sync(acquired) is True
    assert active(limits) == {"user": 0, "all": 0}


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_a_timeout_at_a_later_stage_names_the_timeout_of_the_caller(seconds):
    limits = staged()
    await limits.acquire(user="a")
    with pytest.raises(
        AcquireTimeout, match=rf"no slot of all, {seconds} s .* within {seconds} s: 1 of"
    ):
        await limits.acquire(user="b", timeout=seconds)
