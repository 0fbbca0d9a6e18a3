"""Tiers and slot managers amid interrupts, forks and garbage collection; leaks; wrong arguments."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import weakref
from typing import Any

import pytest
from tests._interrupting import Interrupted, interrupted_when
from tests._stdlib import leave

from slotwise import SlotManager, Tier, Tiers
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


async def test_a_block_that_waits_can_be_shown(settle):
    limits = Tiers(Tier("all", 1))
    async with limits.cm():
        block = limits.cm()
        waiting = asyncio.create_task(block.__aenter__())
        await settle()
        assert "slot_number=0" in repr(block)
        waiting.cancel()
        await settle()
