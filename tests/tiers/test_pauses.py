"""Pauses of tiers, on every backend: of all of them, of one key, of a rate."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from slotwise import (
    AcquireTimeout,
    Rate,
    RateLimit,
    SlotManager,
    Tier,
    Tiers,
)
from slotwise.testing import FakeClock
from slotwise.testing import settle as settled

LONG = 100.0  # no test waits for the end of that

HOSTS = Tier("host", 2, keyed=True), Tier("all", 3)


async def test_a_path_pauses_its_narrowest_key_and_nobody_else(anywhere: dict[str, Any]) -> None:
    async with Tiers(*HOSTS, **anywhere) as tiers:
        await tiers.at(host="slow").pause(LONG)
        assert await tiers.try_acquire(host="slow") is None
        assert await tiers.at(host="slow").locked()
        assert not await tiers.at(host="other").locked()
        held = await tiers.acquire(host="other", timeout=0)
        stats = await tiers.stats()
        assert stats["all"].paused_for == 0
        assert stats["host"].keys["slow"].paused_for > LONG / 2
        assert stats["host"].keys["other"].paused_for == 0
        explained = await tiers.at(host="slow").explain()
        assert [lack.tier for lack in explained.lacks] == ["host"]
        assert explained.lacks[0].paused_for > LONG / 2
        assert await tiers.estimate(host="other") == 0.0
        with pytest.raises(AcquireTimeout, match=r"slow.*paused for another"):
            await tiers.acquire(host="slow", timeout=0)
        await tiers.release(held)


async def test_all_tiers_are_paused_and_reopened(anywhere: dict[str, Any]) -> None:
    async with Tiers(*HOSTS, **anywhere) as tiers:
        held = await tiers.acquire(host="a")
        await tiers.pause(LONG)
        waiting = [asyncio.create_task(tiers.acquire(host=host)) for host in "ab"]
        async with asyncio.timeout(30):
            while len(await tiers.waiters()) != 2:
                await asyncio.sleep(0.001)
        assert await tiers.release(held)
        assert await tiers.try_acquire(host="new") is None
        assert await tiers.at(host="b").locked()
        await tiers.reopen()
        for each in waiting:
            await tiers.release(await asyncio.wait_for(each, 30))
        assert not await tiers.at(host="new").locked()


async def test_a_key_whose_value_is_a_function_can_be_paused_before_it_is_known(
    anywhere: dict[str, Any],
) -> None:
    async with Tiers(Tier("host", len, keyed=True), Tier("all", 9), **anywhere) as tiers:
        await tiers.pause(LONG, host="ab")
        assert await tiers.try_acquire(host="ab") is None
        assert await tiers.try_acquire(host="abc") is not None


async def test_only_one_key_of_a_keyed_tier_can_be_paused(anywhere: dict[str, Any]) -> None:
    two = Tier("user", 2, keyed=True), Tier("host", 2, keyed=True), Tier("all", 3)
    async with Tiers(*two, **anywhere) as tiers:
        with pytest.raises(TypeError, match="at most one key"):
            await tiers.pause(1, user="a", host="b")
        with pytest.raises(TypeError, match="has no keys"):
            await tiers.pause(1, all="x")
        with pytest.raises(ValueError, match="no tier 'nobody'"):
            await tiers.pause(1, nobody="x")
        with pytest.raises(TypeError, match="must be a str"):
            await tiers.pause(1, host=3)  # type: ignore[arg-type]
        await tiers.pause(LONG, host="b")
        assert await tiers.try_acquire(user="a", host="b") is None
        assert await tiers.try_acquire(user="a", host="c") is not None
        await tiers.at(user="z", host="c").pause(LONG)
        assert await tiers.try_acquire(user="z", host="d") is None
        assert await tiers.try_acquire(user="y", host="c") is not None


async def test_a_rate_is_paused_although_there_is_enough(anywhere: dict[str, Any]) -> None:
    url, name = anywhere.get("url"), anywhere.get("name")
    rate = RateLimit(name, Rate(1000, per=1, burst=5), url=url)
    await rate.acquire(cost=5)
    began = time.monotonic()
    await rate.pause(0.3)
    async with asyncio.timeout(30):
        await rate.acquire(cost=2)
    assert time.monotonic() - began > 0.29
    await asyncio.to_thread(rate.pause_sync, LONG)
    assert await rate.try_acquire() is None
    assert await rate.locked()
    assert 0 < (await rate.stats()).paused_for <= LONG
    expected = await rate.estimate()
    assert expected is not None
    assert 0 < expected <= LONG
    await rate.close()


async def test_a_slot_manager_is_paused_for_everybody_or_for_one_user(manager: Any) -> None:
    slots: SlotManager = manager(max_uploads=3, max_uploads_per_user=2, max_downloads=2)
    await slots.pause(LONG, "ann")
    with pytest.raises(TimeoutError):
        await slots.acquire_upload_slot("ann", timeout=0)
    assert await slots.acquire_upload_slot("bob", timeout=0)
    assert await slots.acquire_download_slot(timeout=0)
    await slots.pause(LONG)
    with pytest.raises(TimeoutError):
        await slots.acquire_upload_slot("bob", timeout=0)
    with pytest.raises(TimeoutError):
        await slots.acquire_download_slot(timeout=0)
    await slots.reopen()
    assert await slots.acquire_upload_slot("ann", timeout=0)


# ---------------------------------------------------------- in memory, to the second


async def test_a_pause_is_remembered_when_its_key_or_all_objects_are_forgotten() -> None:
    with FakeClock() as clock:
        Tiers(*HOSTS, name="paused and dropped").pause_sync(10)
        tiers = Tiers(*HOSTS, name="paused and dropped", max_idle_keys=0)
        assert tiers.try_acquire_sync(host="a") is None
        tiers.pause_sync(20, host="a")
        tiers.forget_idle_sync("host", 0, 0)
        clock.advance(11)
        assert tiers.try_acquire_sync(host="a") is None
        held = tiers.try_acquire_sync(host="b")
        assert held is not None
        tiers.release_sync(held)
        clock.advance(10)
        assert tiers.try_acquire_sync(host="a") is not None
        await settled()
