"""Names: which instances are one semaphore, and what becomes of one that nobody uses."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from tests.memory._inside import tracker_of

from slotwise import MemorySemaphore, SemaphoreClosed, SemaphoreStats, ValueConflict
from slotwise.memory._registry import registry
from slotwise.testing import FakeClock


async def test_no_name_makes_a_private_semaphore() -> None:
    one, other = MemorySemaphore(value=1), MemorySemaphore(value=1)
    await one.acquire()
    assert not await other.locked()
    assert one.name is None
    assert "private" in repr(one)


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


async def test_a_close_also_closes_instances_whose_name_was_forgotten_or_in_conflict(
    clock: FakeClock,
) -> None:
    forgotten = MemorySemaphore(name="closed-later", value=1)
    clock.advance(61)
    assert not await MemorySemaphore.get_acquired_stats(["closed-later"])
    present = MemorySemaphore(name="closed-later", value=1)
    held = await present.acquire()
    in_conflict = MemorySemaphore(name="closed-later", value=2)
    await present.close()
    await present.release(held)
    for earlier in (forgotten, in_conflict):
        assert await earlier.locked()
        with pytest.raises(SemaphoreClosed):
            await earlier.acquire()
    async with MemorySemaphore(name="closed-later", value=2):
        pass


async def test_a_name_that_is_closed_everywhere_outlives_its_minute(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(name="closed-for-long", value=1)
    await semaphore.close_everywhere("holidays")
    del semaphore
    clock.advance(300)
    later = MemorySemaphore(name="closed-for-long", value=1)
    assert await later.stats() == SemaphoreStats(0, 1, 0, True, "holidays")
    with pytest.raises(SemaphoreClosed, match="holidays"):
        await later.acquire()
    await later.reopen()
    async with later:
        pass
    clock.advance(61)
    assert not await MemorySemaphore.get_acquired_stats(["closed-for-long"])


async def test_names_that_were_closed_leave_nothing_behind() -> None:
    for number in range(100):
        semaphore = MemorySemaphore(name=f"passing-{number}", value=1)
        async with semaphore:
            pass
        await semaphore.close()
    del semaphore
    gc.collect()
    assert not [key for key in registry.generations.open_names() if str(key).startswith("passing-")]


async def test_idle_names_are_forgotten_after_a_minute(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(name="idle", value=1)
    async with semaphore:
        pass
    assert await MemorySemaphore.get_acquired_stats(["idle"])
    clock.advance(59)
    assert await MemorySemaphore.get_acquired_stats(["idle"])
    clock.advance(2)
    assert not await MemorySemaphore.get_acquired_stats(["idle"])


async def test_use_keeps_a_name_for_another_minute(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(name="used", value=1)
    clock.advance(50)
    async with semaphore:
        pass
    clock.advance(50)
    assert await MemorySemaphore.get_acquired_stats(["used"])
    clock.advance(12)
    assert not await MemorySemaphore.get_acquired_stats(["used"])


async def test_an_instance_goes_on_after_its_name_was_forgotten(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(name="revived", value=1)
    other = MemorySemaphore(name="revived", value=1)
    clock.advance(61)
    assert not await MemorySemaphore.get_acquired_stats(["revived"])
    assert await semaphore.stats() == SemaphoreStats(0, 1)
    async with semaphore:
        assert await other.locked()
        assert await other.try_acquire() is None
    acquired = await other.acquire()
    assert await semaphore.release(acquired)


async def test_a_release_finds_its_semaphore_through_a_forgetful_instance(
    clock: FakeClock,
) -> None:
    old = MemorySemaphore(name="forgetful", value=1)
    clock.advance(61)
    held = await MemorySemaphore(name="forgetful", value=1).acquire()
    assert await old.release(held) is True


async def test_held_and_waited_for_names_are_never_forgotten(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(name="busy", value=1)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await asyncio.sleep(0)
    clock.advance(600)
    assert await MemorySemaphore(name="busy", value=1).stats() == SemaphoreStats(1, 1, 1)
    await semaphore.release(held)
    await semaphore.release(await waiting)
    clock.advance(122)
    assert not await MemorySemaphore.get_acquired_stats(["busy"])


async def test_a_resized_name_is_kept_so_that_the_resize_lasts(clock: FakeClock) -> None:
    await MemorySemaphore(name="resized", value=2).resize(7)
    clock.advance(600)
    assert await MemorySemaphore(name="resized", value=2).stats() == SemaphoreStats(0, 7)
    await MemorySemaphore(name="resized", value=2).resize(2)
    clock.advance(122)
    assert not await MemorySemaphore.get_acquired_stats(["resized"])


async def test_names_are_forgotten_in_passing_by_who_makes_new_ones(clock: FakeClock) -> None:
    for number in range(300):
        MemorySemaphore(name=f"old-{number}", value=1)
    # As in a process whose timer thread does not run: nobody rings.
    clock._move_to(clock.now() + 61)
    before = len(registry)
    for number in range(10):
        MemorySemaphore(name=f"new-{number}", value=1)
    assert len(registry) <= before + 10 - 300


async def test_a_name_costs_nothing_once_it_is_forgotten(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(name="gone", value=1)
    async with semaphore.cm():
        pass
    tracker = weakref.ref(tracker_of(semaphore))
    del semaphore
    clock.advance(61)
    gc.collect()
    assert tracker() is None


def test_a_semaphore_of_a_billion_slots_is_cheap() -> None:
    semaphore = MemorySemaphore(value=10**9)
    held = [semaphore.try_acquire_sync() for _ in range(100)]
    assert [acquired.slot_number for acquired in held if acquired] == [*range(1, 101)]
    assert len(tracker_of(semaphore).free) < 200
