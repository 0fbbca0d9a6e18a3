"""Tiers and slot managers amid interrupts, forks and garbage collection; leaks; wrong arguments."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from typing import Any

import pytest
from tests._inside import uploads_of
from tests._interrupting import Interrupted, interrupted_when
from tests._stdlib import leave
from tests.ledger.invariants import check
from tests.memory._inside import ledger_of

from slotwise import SlotManager, Tier, Tiers
from slotwise._ledger import path_queue
from slotwise._wait.section import lock
from slotwise.testing import leaked_slots


def two_tiers() -> Tiers:
    return Tiers(Tier("user", 1, keyed=True), Tier("all", 1))


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)


def is_free(limits: Tiers) -> bool:
    return all(tier.active == tier.waiting == 0 for tier in limits.stats_sync().values())


def test_a_thread_that_is_interrupted_while_it_waits_keeps_nothing():
    limits = two_tiers()
    held = limits.acquire_sync(user="a")
    waits = interrupted_when(lambda: limits.stats_sync()["all"].waiting == 1)
    with waits, pytest.raises(Interrupted):
        limits.acquire_sync(user="b")
    limits.release_sync(held)
    wait_until(lambda: is_free(limits))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_takes_slots_of_its_own():
    limits = two_tiers()
    limits.release_sync(limits.acquire_sync(user="a"))
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            limits.release_sync(limits.acquire_sync(user="a"))
        except BaseException:
            leave(1)
        leave()
    assert os.waitpid(child, 0)[1] == 0


def test_a_manager_that_nobody_has_any_more_is_collected_with_its_clean_up():
    slots = SlotManager(cleanup_interval=60)
    gone = weakref.ref(slots)
    del slots
    until = time.monotonic() + 30
    while gone() is not None:  # collect() does nothing while another thread collects
        assert time.monotonic() < until
        gc.collect()


async def test_a_release_as_the_wrong_kind_takes_nothing_from_its_owner():
    async with SlotManager() as slots:
        acquired = await slots.acquire_upload_slot("alice")
        assert await slots.release_download_slot(acquired) is False
        assert await slots.release_upload_slot("alice") is True


async def test_tiers_that_are_held_or_waited_for_are_leaks(settle):
    limits = Tiers(Tier("user", 1, keyed=True), Tier("all", 1), name="leaking tiers")

    def found() -> list[str]:
        return [str(leak) for leak in leaked_slots().values() if "leaking tiers" in str(leak)]

    held = await limits.acquire(user="a")
    waiting = asyncio.create_task(limits.acquire(user="b"))
    await settle()
    [words] = found()
    assert f"1 held ({held.acquisition_id}), 1 waiting" in words
    await limits.release(held)
    await limits.release(await waiting)
    assert found() == []


# ------------------------------------------------- time, and what is left behind


def active(limits):
    return limits.stats_sync()["all"].active


def in_order(limits):
    with lock:
        check(ledger_of(limits))


# ----------------------------------------------------- grants that nobody collects


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
