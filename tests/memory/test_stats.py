"""get_acquired_stats: who is in the list, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from slotwise import MemorySemaphore, SemaphoreStats
from slotwise.testing import settle


async def test_the_fullest_come_first_and_idle_ones_are_left_out() -> None:
    half, full, idle = (
        MemorySemaphore(name=f"stats-{name}", value=2) for name in ("half", "full", "idle")
    )
    async with half, full, full:
        stats = await MemorySemaphore.get_acquired_stats()
        assert [name for name in stats if name.startswith("stats-")] == ["stats-full", "stats-half"]
        assert stats["stats-full"] == SemaphoreStats(2, 2)
        assert stats["stats-full"].acquired_percent == 100.0
        assert stats["stats-half"].acquired_percent == 50.0
    assert await idle.stats() == SemaphoreStats(0, 2)


async def test_idle_ones_are_listed_when_named_and_unknown_ones_never() -> None:
    idle = MemorySemaphore(name="stats-idle-named", value=2)
    stats = await MemorySemaphore.get_acquired_stats(names=["stats-idle-named", "stats-unknown"])
    assert stats == {idle.name: SemaphoreStats(0, 2)}


async def test_waiters_are_counted() -> None:
    semaphore = MemorySemaphore(name="stats-waited", value=2)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire(2))
    await settle()
    assert (await MemorySemaphore.get_acquired_stats())["stats-waited"] == SemaphoreStats(1, 2, 1)
    await semaphore.release(held)
    await semaphore.release(await waiting)


async def test_private_ones_are_not_listed() -> None:
    before = await MemorySemaphore.get_acquired_stats()
    async with MemorySemaphore(value=1):
        assert await MemorySemaphore.get_acquired_stats() == before


async def test_the_list_is_cut_at_the_limit() -> None:
    held = [MemorySemaphore(name=f"stats-many-{number}", value=1) for number in range(105)]
    acquired = [await semaphore.acquire() for semaphore in held]
    assert len(await MemorySemaphore.get_acquired_stats()) == 100
    assert len(await MemorySemaphore.get_acquired_stats(limit=3)) == 3
    assert len(await asyncio.to_thread(MemorySemaphore.get_acquired_stats_sync, limit=3)) == 3
    for semaphore, one in zip(held, acquired, strict=True):
        await semaphore.release(one)


async def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="names"):
        await MemorySemaphore.get_acquired_stats("stats")
    with pytest.raises(ValueError, match="limit"):
        await MemorySemaphore.get_acquired_stats(limit=0)


async def test_statistics_tell_the_truth_after_a_shrink() -> None:
    semaphore = MemorySemaphore(value=2)
    async with semaphore, semaphore:
        await semaphore.resize(1)
        stats = await semaphore.stats()
        assert stats == SemaphoreStats(2, 1)
        assert stats.acquired_percent == 200.0
