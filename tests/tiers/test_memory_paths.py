"""Atomic tiers of one process: time, threads, loops that close, grants that can't be delivered."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from tests._inside import uploads_of
from tests._stdlib import discard
from tests.ledger.invariants import check
from tests.memory._inside import ledger_of

from slotwise import AcquireTimeout, SlotManager, Tier, Tiers, ValueConflict
from slotwise._ledger import path_queue
from slotwise._wait.section import lock
from slotwise.errors import ContextReused


def two_tiers(**options):
    return Tiers(Tier("user", 1, keyed=True), Tier("all", 2), **options)


def active(limits):
    return limits.stats_sync()["all"].active


def in_order(limits):
    with lock:
        check(ledger_of(limits))


# ------------------------------------------------------------------------- time


async def test_a_wait_ends_at_its_timeout_by_the_clock_of_slotwise(clock, settle):
    limits = two_tiers()
    async with limits.cm(user="a"):
        waiting = asyncio.create_task(limits.acquire(user="a", timeout=5))
        await settle()
        clock.advance(4.9)
        await settle()
        assert not waiting.done()
        clock.advance(0.2)
        with pytest.raises(AcquireTimeout, match="'a': 1 of 1 held"):
            await waiting
        assert limits.stats_sync()["all"].waiting == 0
    in_order(limits)


async def test_a_ttl_frees_all_tiers_and_tells_the_holder(clock, settle, caplog):
    limits = two_tiers(ttl=10)
    acquired = await limits.acquire(user="a")
    waiting = asyncio.create_task(limits.acquire(user="a"))
    await settle()
    clock.advance(10)
    await settle()
    assert acquired.lost.is_set()
    assert waiting.done()
    assert await limits.release(acquired) is False
    assert active(limits) == 1
    assert "its ttl of" in caplog.text
    await limits.release(waiting.result())
    in_order(limits)


async def test_a_ttl_cancels_the_task_if_so_wanted(clock, settle):
    limits = two_tiers(ttl=10, cancel_task_after_ttl=True)

    async def work():
        async with limits.cm(user="a"):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    clock.advance(11)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert active(limits) == 0


async def test_a_holder_that_leaves_before_its_ttl_is_not_cancelled(clock, settle):
    limits = two_tiers(ttl=10, cancel_task_after_ttl=True)
    async with limits.cm(user="a"):
        pass
    clock.advance(11)
    await settle()
    in_order(limits)


# ----------------------------------------------------- grants that nobody collects


async def test_a_waiter_cancelled_after_its_grant_hands_it_on(settle):
    limits = two_tiers()
    first = await limits.acquire(user="a")
    one = asyncio.create_task(limits.acquire(user="a"))
    other = asyncio.create_task(limits.acquire(user="a"))
    await settle()
    limits.release_sync(first)  # granted to `one`, which has not run yet
    one.cancel()
    await settle()
    assert one.cancelled()
    assert other.done()
    limits.release_sync(other.result())
    assert active(limits) == 0
    in_order(limits)


def test_a_grant_to_a_closed_loop_goes_to_the_next():
    limits = two_tiers()
    held = limits.acquire_sync(user="a")
    loop = asyncio.new_event_loop()
    lost = [loop.create_task(limits.acquire(user="a")) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    assert limits.stats_sync()["all"].waiting == 3
    got = []
    thread = threading.Thread(target=lambda: got.append(limits.acquire_sync(user="a")))
    thread.start()
    while limits.stats_sync()["all"].waiting != 4:
        pass
    loop.close()
    limits.release_sync(held)
    thread.join(30)
    assert len(got) == 1
    limits.release_sync(got[0])
    assert active(limits) == 0
    for task in lost:  # nobody will ever run them
        discard(task)
    del lost, task
    gc.collect()
    in_order(limits)


async def test_threads_tasks_and_other_loops_wait_in_one_queue(settle):
    limits = two_tiers()
    order = []

    def thread():
        with limits.cm(user="a"):
            order.append("thread")

    def loop_in_thread():
        async def task():
            async with limits.cm(user="a"):
                order.append("loop")

        asyncio.run(task())

    async def task():
        async with limits.cm(user="a"):
            order.append("task")

    async def waiting(count):
        async with asyncio.timeout(30):
            while limits.stats_sync()["all"].waiting != count:
                await asyncio.sleep(0.001)

    async with limits.cm(user="a"):
        others = [asyncio.create_task(asyncio.to_thread(thread))]
        await waiting(1)
        others.append(asyncio.create_task(task()))
        await waiting(2)
        others.append(asyncio.create_task(asyncio.to_thread(loop_in_thread)))
        await waiting(3)
    async with asyncio.timeout(30):
        await asyncio.gather(*others)
    assert order == ["thread", "task", "loop"]


async def test_what_one_call_leaves_over_is_done_at_once(settle, monkeypatch):
    """More groups are parked at one node than one call may examine."""
    monkeypatch.setattr(path_queue, "LOOKS", 3)
    limits = Tiers(Tier("user", 1, keyed=True), Tier("all", 50))
    held = [await limits.acquire(user=f"h{n}") for n in range(50)]
    waiting = [asyncio.create_task(limits.acquire(user=f"w{n}")) for n in range(50)]
    await settle()
    limits.resize_sync("all", 100)
    assert active(limits) == 100
    async with asyncio.timeout(30):
        held += await asyncio.gather(*waiting)
    for acquired in held:
        limits.release_sync(acquired)
    in_order(limits)


# ------------------------------------------------------------------- names, blocks


async def test_tiers_of_one_name_share_their_slots_and_must_agree():
    one, other = two_tiers(name="shared-tiers"), two_tiers(name="shared-tiers")
    async with one.cm(user="a"):
        with pytest.raises(AcquireTimeout, match="shared-tiers"):
            await other.acquire(user="a", timeout=0)
        with pytest.raises(ValueConflict, match="shared-tiers"):
            Tiers(Tier("user", 2, keyed=True), Tier("all", 2), name="shared-tiers")
    async with other.cm(user="a", timeout=0):
        pass


async def test_a_block_knows_whether_it_was_entered():
    limits = two_tiers()
    block = limits.cm(user="a")
    assert "not entered" in repr(block)
    with pytest.raises(ContextReused):
        block.acquisition_id  # noqa: B018
    with pytest.raises(ContextReused):
        await block.__aexit__(None, None, None)
    async with block as acquired:
        assert acquired == block
        assert acquired.acquisition_id in repr(acquired)
    assert active(limits) == 0


async def test_an_id_of_nobody_is_ignored_with_a_warning(caplog):
    limits = two_tiers()
    assert await limits.release("nobody's") is False
    assert "nobody's" in caplog.text


# -------------------------------------------------------------------- idle keys


async def test_the_clean_up_in_the_background_forgets_users_that_were_idle_for_long(clock):
    slots = SlotManager(cleanup_interval=60, idle_threshold=900)
    async with slots.upload("early"):
        pass
    clock.advance(600)
    async with slots.upload("late"):
        pass
    held = await slots.acquire_upload_slot("held")
    clock.advance(
        390
    )  # past the interval after the threshold: at the very moment, rounding decides
    assert {*uploads_of(slots).stats_sync()["user"].keys} == {"late", "held"}
    clock.advance(10_000)
    assert {*uploads_of(slots).stats_sync()["user"].keys} == {"held"}
    await slots.release_upload_slot("held", held)
    clock.advance(960)
    assert slots.stats_sync().user_slots_count == 0
    await slots.close()


async def test_no_interval_no_work_in_the_background(clock):
    slots = SlotManager(cleanup_interval=0, idle_threshold=1)
    async with slots.upload("a"):
        pass
    clock.advance(10_000)
    assert slots.stats_sync().user_slots_count == 1


async def test_a_closed_manager_cleans_no_more(clock):
    slots = SlotManager(cleanup_interval=60, idle_threshold=0)
    async with slots.upload("a"):
        pass
    await slots.close()
    clock.advance(1000)
    assert slots.stats_sync().user_slots_count == 1


def test_a_manager_without_a_loop_cleans_by_itself():
    with SlotManager(cleanup_interval=0.01, idle_threshold=0) as slots:
        with slots.upload("a"):
            pass
        hang = threading.Event()
        for _ in range(3000):
            if slots.stats_sync().user_slots_count == 0:
                return
            hang.wait(0.01)
    raise AssertionError("the user is still there after 30 s")


async def test_a_manager_that_nobody_has_any_more_is_collected(collect):
    import weakref

    slots = SlotManager()
    async with slots.upload("a"):
        pass
    gone = weakref.ref(slots)
    del slots
    collect()
    assert gone() is None


async def test_a_user_seen_again_is_not_the_longest_idle(clock):
    slots = SlotManager(max_idle_users=2, cleanup_interval=0)
    for user in ("a", "b", "a", "c"):
        clock.advance(1)
        async with slots.upload(user):
            pass
    assert {*uploads_of(slots).stats_sync()["user"].keys} == {"a", "c"}


async def test_what_expired_is_nobodys_any_more_after_a_clean_up(clock):
    slots = SlotManager(ttl=10, cleanup_interval=60)
    await slots.acquire_upload_slot("a")
    clock.advance(61)
    assert await slots.release_upload_slot("a") is False
    await slots.close()
