"""Blocks of ``async with`` wait in a line, everything else as claims behind it: both, together."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from tests.memory._inside import ledger_of

from slotwise import MemorySemaphore, SemaphoreStats
from slotwise.testing import FakeClock

Settle = Callable[[], Awaitable[None]]


async def block(semaphore: MemorySemaphore, entered: list[str], name: str) -> None:
    async with semaphore:
        entered.append(name)
        await asyncio.sleep(0)


async def claim(semaphore: MemorySemaphore, entered: list[str], name: str) -> None:
    async with semaphore.cm():
        entered.append(name)
        await asyncio.sleep(0)


@pytest.mark.parametrize("change", ["release", "grow", "shrink", "pause"])
async def test_claims_behind_a_line_of_blocks_are_served_after_it(
    change: str, settle: Settle
) -> None:
    semaphore, entered = MemorySemaphore(2), []
    held = [await semaphore.acquire(), await semaphore.acquire()]
    waiting = []
    for number, visit in enumerate((block, block, block, claim, block, claim)):
        waiting.append(asyncio.create_task(visit(semaphore, entered, str(number))))
        await settle()
    if change == "grow":
        await semaphore.resize(3)
    elif change == "shrink":
        await semaphore.resize(1)
    elif change == "pause":
        await semaphore.pause(600)
        await semaphore.reopen()
    for each in held:
        await semaphore.release(each)
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert entered == [str(number) for number in range(6)]
    assert not ledger_of(semaphore).attention
    assert await semaphore.stats() == SemaphoreStats(0, (await semaphore.stats()).max_slots)


async def test_blocks_wait_in_line_again_after_another_value_was_declared() -> None:
    one = MemorySemaphore(1, name="line-declared")
    two = MemorySemaphore(2, name="line-declared")
    for semaphore in (one, two, one, two):
        entered: list[str] = []
        async with asyncio.timeout(30):
            await asyncio.gather(*[block(semaphore, entered, str(n)) for n in range(6)])
        assert len(entered) == 6


async def test_replaced_holds_count_for_the_estimate(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(1, shed="deadline")
    await semaphore.acquire()
    for _ in range(5):
        clock.advance(0.01)
        await semaphore.acquire(on_full="replace")
    estimate = await semaphore.estimate()
    assert estimate is not None
    assert estimate > 0


async def test_a_limit_that_sheds_times_holds_after_another_value_was_declared(
    clock: FakeClock,
) -> None:
    one = MemorySemaphore(1, name="shed-declared", shed="deadline")
    two = MemorySemaphore(2, name="shed-declared", shed="deadline")
    for semaphore in (one, two):
        held = await semaphore.acquire(semaphore.value)
        clock.advance(0.01)
        await semaphore.release(held)
        async with semaphore.cm(semaphore.value):
            assert await semaphore.estimate() is not None


async def test_who_still_holds_a_closed_name_is_shown_by_the_next_object() -> None:
    closed = MemorySemaphore(1, name="closed-and-held")
    held = await closed.acquire(label="export")
    await closed.close()
    newcomer = MemorySemaphore(1, name="closed-and-held")
    assert (await newcomer.stats()).acquired_slots == 1
    assert [holder.label for holder in await newcomer.holders()] == ["export"]
    assert "closed-and-held" in await MemorySemaphore.get_acquired_stats()
    await closed.release(held)
    assert await newcomer.holders() == []
    async with newcomer:
        pass
    del newcomer
    gc.collect()
    assert not await MemorySemaphore.get_acquired_stats(["closed-and-held"])
