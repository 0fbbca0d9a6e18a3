"""Names: which instances are one semaphore, and what becomes of one that nobody uses."""

from __future__ import annotations

import asyncio
import gc

import pytest

from slotwise import MemorySemaphore, SemaphoreClosed, SemaphoreStats, ValueConflict
from slotwise.memory._registry import registry
from slotwise.memory._tracker import kept
from slotwise.testing import FakeClock


async def test_the_first_instance_takes_its_own_value_again_when_idle() -> None:
    first = MemorySemaphore(name="taking-turns", value=1)
    second = MemorySemaphore(name="taking-turns", value=2)
    async with second.cm():
        assert second.value == 2
        with pytest.raises(ValueConflict):
            await first.acquire()
    async with first.cm():
        assert await first.stats() == SemaphoreStats(1, 1)
        with pytest.raises(ValueConflict):
            await second.acquire()


async def test_an_instance_in_conflict_can_look_release_resize_and_close() -> None:
    semaphore = MemorySemaphore(name="steered", value=2)
    held = await semaphore.acquire()
    other = MemorySemaphore(name="steered", value=5)
    assert await other.stats() == SemaphoreStats(1, 2)
    assert not await other.locked()
    assert await other.release(held) is True
    held = await semaphore.acquire()
    await other.resize(3)
    assert await semaphore.stats() == SemaphoreStats(1, 3)
    await other.acquire()  # it follows now
    await other.close()
    assert await semaphore.locked()


async def test_a_close_also_closes_instances_in_conflict() -> None:
    present = MemorySemaphore(name="closed-later", value=1)
    held = await present.acquire()
    in_conflict = MemorySemaphore(name="closed-later", value=2)
    await present.close()
    await present.release(held)
    for earlier in (present, in_conflict):
        assert await earlier.locked()
        with pytest.raises(SemaphoreClosed):
            await earlier.acquire()
    async with MemorySemaphore(name="closed-later", value=2):
        pass


async def test_a_name_that_is_closed_everywhere_outlives_its_instances() -> None:
    semaphore = MemorySemaphore(name="closed-for-long", value=1)
    await semaphore.close_everywhere("holidays")
    del semaphore
    later = MemorySemaphore(name="closed-for-long", value=1)
    assert await later.stats() == SemaphoreStats(0, 1, 0, True, "holidays")
    with pytest.raises(SemaphoreClosed, match="holidays"):
        await later.acquire()
    await later.reopen()
    async with later:
        pass
    del later
    gc.collect()
    assert not await MemorySemaphore.get_acquired_stats(["closed-for-long"])


async def test_a_name_ends_with_its_last_instance() -> None:
    semaphore = MemorySemaphore(name="idle", value=1)
    async with semaphore:
        pass
    assert await MemorySemaphore.get_acquired_stats(["idle"])
    del semaphore
    gc.collect()
    assert not await MemorySemaphore.get_acquired_stats(["idle"])


async def test_a_slot_that_is_held_by_its_id_alone_keeps_its_name() -> None:
    acquired = await MemorySemaphore(name="by-id", value=1).acquire()
    acquisition_id = acquired.acquisition_id
    del acquired
    gc.collect()
    newcomer = MemorySemaphore(name="by-id", value=1)
    assert await newcomer.try_acquire() is None
    assert await newcomer.release(acquisition_id) is True
    async with newcomer:
        pass


async def test_a_wait_keeps_its_name(settle) -> None:
    held = await MemorySemaphore(name="busy", value=1).acquire()
    waiting = asyncio.create_task(MemorySemaphore(name="busy", value=1).acquire())
    await settle()
    gc.collect()
    newcomer = MemorySemaphore(name="busy", value=1)
    assert await newcomer.stats() == SemaphoreStats(1, 1, 1)
    await newcomer.release(held)
    await newcomer.release(await waiting)


async def test_a_resized_name_is_kept_so_that_the_resize_lasts() -> None:
    await MemorySemaphore(name="resized", value=2).resize(7)
    gc.collect()
    assert await MemorySemaphore(name="resized", value=2).stats() == SemaphoreStats(0, 7)
    await MemorySemaphore(name="resized", value=2).resize(2)
    gc.collect()
    assert not await MemorySemaphore.get_acquired_stats(["resized"])


async def test_a_pause_is_kept_until_it_ends(clock: FakeClock) -> None:
    await MemorySemaphore(name="paused", value=2).pause(5)
    gc.collect()
    assert await MemorySemaphore(name="paused", value=2).try_acquire() is None
    clock.advance(6)
    for number in range(len(kept)):  # others look at it in passing
        MemorySemaphore(name=f"others-{number}", value=2)
    gc.collect()
    assert not await MemorySemaphore.get_acquired_stats(["paused"])


def test_names_that_come_and_go_leave_nothing_behind() -> None:
    before = len(registry)
    for number in range(1000):
        semaphore = MemorySemaphore(name=f"passing-{number}", value=1)
        with semaphore.cm():
            pass
        semaphore.close_sync()
    del semaphore
    gc.collect()
    assert len(registry) <= before


# --------------------------- get_acquired_stats: who is in the list, and in which order


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
