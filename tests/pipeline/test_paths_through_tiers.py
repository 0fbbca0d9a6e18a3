"""Bounded work whose slots are those of a path through tiers: any Limit will do."""

from __future__ import annotations

import asyncio

import pytest

from slotwise import Adaptive, MemorySemaphore, Rate, RateLimit, Tier, Tiers
from slotwise.pipeline import run_bounded, run_bounded_sync
from slotwise.pipeline._settings import check_settings


def tiers() -> Tiers:
    return Tiers(Tier("tenant", 2, keyed=True), Tier("all", 5))


async def test_no_more_items_run_than_the_tightest_tier_has_slots() -> None:
    limits = tiers()
    acme = limits.at(tenant="acme")
    running, most = 0, 0

    async def work(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    report = await run_bounded(work, range(20), 4, semaphore=acme)
    assert (report.done, most) == (20, 2)
    assert (await limits.stats())["all"].active == 0


def test_threads_take_their_slots_of_a_path_too() -> None:
    limits = tiers()
    with limits.cm(tenant="acme"):
        seen = []

        def work(_: int) -> None:
            seen.append(limits.stats_sync()["tenant"].keys["acme"].active)

        report = run_bounded_sync(work, range(10), 3, semaphore=limits.at(tenant="acme"))
    assert report.done == 10
    assert set(seen) == {2}, "one slot is held outside, so one item runs at a time"


async def test_the_smallest_fixed_value_on_a_path_is_the_limit() -> None:
    async def work(_: int) -> None: ...

    assert check_settings(None, {"semaphore": tiers().at(tenant="acme")}).limit == 2
    rated = Tiers(Tier("calls", rate=Rate(99, per=1, burst=99)), Tier("x", 0), Tier("all", 5))
    assert check_settings(None, {"semaphore": rated.at()}).limit == 5
    report = await run_bounded(work, range(7), semaphore=tiers().at(tenant="acme"))
    assert report.done == 7


async def test_a_limit_without_a_value_needs_a_limit_for_the_run() -> None:
    async def work(_: int) -> None: ...

    for limit in (
        Tiers(Tier("calls", rate=Rate(9, per=1)), Tier("all", 0)).at(),
        Tiers(Tier("calls", Adaptive(2, min=1, max=3)), Tier("all", 0)).at(),
    ):
        with pytest.raises(TypeError, match="needs limit=: no fixed value for 'calls' or 'all'"):
            await run_bounded(work, [1], semaphore=limit)
    with pytest.raises(TypeError, match=r"needs limit=: .* 'calls' has no fixed value"):
        await run_bounded(work, [1], semaphore=RateLimit("calls", Rate(9, per=1)))
    with pytest.raises(TypeError, match="slotwise Limit"):
        await run_bounded(work, [1], 1, semaphore=asyncio.Semaphore(1))  # type: ignore[arg-type]
    for limit_of_run in (None, 1):
        with pytest.raises(TypeError, match=r"semaphore=tiers\.at\(\.\.\.\)"):
            await run_bounded(work, [1], limit_of_run, semaphore=tiers())  # type: ignore[arg-type]
    report = await run_bounded(work, [1], semaphore=MemorySemaphore(2))
    assert report.done == 1
