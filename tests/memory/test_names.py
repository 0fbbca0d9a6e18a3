"""Names: which instances are one semaphore, and what becomes of one that nobody uses."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from tests.memory._inside import ledger_of

from slotwise import MemorySemaphore, SemaphoreClosed, SemaphoreStats, ValueConflict
from slotwise.memory._registry import registry
from slotwise.memory._tracker import kept
from slotwise.testing import FakeClock


async def test_a_name_is_shared_between_threads_and_loops() -> None:
    held = await MemorySemaphore(name="shared-threads", value=1).acquire()
    seen: list[bool] = []

    def other_loop() -> None:
        async def look() -> None:
            seen.append(await MemorySemaphore(name="shared-threads", value=1).locked())

        asyncio.run(look())

    thread = threading.Thread(target=other_loop)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert seen == [True]
    assert await MemorySemaphore(name="shared-threads", value=1).release(held)


async def test_a_conflict_while_somebody_only_waits() -> None:
    semaphore = MemorySemaphore(name="conflict-waiting", value=2)
    held = [await semaphore.acquire() for _ in range(2)]
    waiting = asyncio.create_task(semaphore.acquire())
    await asyncio.sleep(0)
    with pytest.raises(ValueConflict, match="2 held, 1 waiting"):
        await MemorySemaphore(name="conflict-waiting", value=1).acquire()
    for acquired in [*held, await semaphore.release(held[0]) and await waiting]:
        await semaphore.release(acquired)


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


def test_a_semaphore_of_a_billion_slots_is_cheap() -> None:
    semaphore = MemorySemaphore(value=10**9)
    held = [semaphore.try_acquire_sync() for _ in range(100)]
    assert [acquired.slot_number for acquired in held if acquired] == [*range(1, 101)]
    assert len(ledger_of(semaphore).node().free) < 200
