"""Replacing a holder: a newcomer has the slot of who has held for longest, in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import AcquireTimeout, LimitFull, Semaphore
from tests._inside import backend_of
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]


async def lost(acquired: Any) -> str:
    """Wait for a loss, and return its reason."""
    async with asyncio.timeout(30):
        while not acquired.lost:
            await asyncio.sleep(0.001)
    return str(acquired.lost.reason)


async def test_a_newcomer_replaces_the_holder_that_has_held_longest(
    make: Make, speak: Speak
) -> None:
    semaphore = make(2)
    first, second = [await speak.acquire(semaphore) for _ in range(2)]
    waiting = asyncio.create_task(speak.acquire(semaphore))
    await speak.waiting(semaphore, 1)
    newcomer = await speak.acquire(semaphore, on_full="replace")
    assert await lost(first) == "it was kicked"
    assert not second.lost
    assert newcomer.slot_number == 1
    assert (await speak.stats(semaphore)).waiting == 1  # those in line stay in line
    assert await speak.release(semaphore, first) is False
    await speak.release(semaphore, second)
    await speak.release(semaphore, await waiting)
    await speak.release(semaphore, newcomer)
    assert (await speak.stats(semaphore)).acquired_slots == 0


async def test_a_free_slot_is_taken_and_nobody_is_replaced(make: Make, speak: Speak) -> None:
    semaphore = make(2, max_waiting=0)
    first = await speak.acquire(semaphore, on_full="replace")
    second = await speak.acquire(semaphore, on_full="replace")
    assert not first.lost
    third = await speak.acquire(semaphore, on_full="replace", timeout=0)  # nor is it refused
    assert await lost(first) == "it was kicked"
    for each in (second, third):
        assert not each.lost
        await speak.release(semaphore, each)


async def test_as_many_are_replaced_as_are_needed_and_what_is_left_over_is_handed_on(
    make: Make, speak: Speak
) -> None:
    semaphore = make(4)
    large, small = await speak.acquire(semaphore, 3), await speak.acquire(semaphore)
    waiting = asyncio.create_task(speak.acquire(semaphore))
    await speak.waiting(semaphore, 1)
    newcomer = await speak.acquire(semaphore, 2, on_full="replace")
    assert await lost(large) == "it was kicked"
    served = await waiting  # one of the three is left over
    everything = await speak.acquire(semaphore, 4, on_full="replace")
    for each in (small, newcomer, served):
        assert await lost(each) == "it was kicked"
    await speak.release(semaphore, everything)
    assert (await speak.stats(semaphore)).acquired_slots == 0


async def test_a_holder_with_a_grace_keeps_its_slot_until_it_leaves(
    make: Make, speak: Speak, request: pytest.FixtureRequest
) -> None:
    if "memory" in request.node.callspec.id:
        pytest.skip("nobody has a grace in memory")
    semaphore, ending = make(1), make(1)
    backend_of(ending).grace = 600.0
    old = await speak.acquire(ending)
    patient = asyncio.create_task(speak.acquire(semaphore))
    await speak.waiting(semaphore, 1)
    with pytest.raises(AcquireTimeout):
        await speak.acquire(semaphore, on_full="replace", timeout=0)
    assert not old.lost, "who doesn't wait kicks nobody in vain"
    replacing = []
    for count in (2, 3):
        newer = asyncio.create_task(speak.acquire(semaphore, on_full="replace"))
        replacing.append(newer)
        await speak.waiting(semaphore, count)
    assert await lost(old) == "it was kicked"
    assert (await speak.stats(semaphore)).acquired_slots == 1, "it has yet to end its work"
    await speak.release(ending, old)
    for task in (*replacing, patient):  # in front, in their order; then who waits
        await speak.release(semaphore, await asyncio.wait_for(task, 30))
    assert (await speak.stats(semaphore)).acquired_slots == 0


@pytest.mark.parametrize("wrong", ["", "kick", 1, None])
async def test_a_wrong_on_full_is_an_error_and_takes_nothing(make: Make, wrong: Any) -> None:
    semaphore = make(1)
    with pytest.raises((TypeError, ValueError), match="on_full must be 'wait' or 'replace'"):
        await semaphore.acquire(on_full=wrong)
    with pytest.raises((TypeError, ValueError), match="on_full must be 'wait' or 'replace'"):
        semaphore.cm(on_full=wrong)
    assert not await semaphore.locked()


async def test_blocks_without_an_acquisition_are_not_replaced() -> None:
    from slotwise import MemorySemaphore

    semaphore = MemorySemaphore(1, max_waiting=0)
    async with semaphore:
        with pytest.raises(LimitFull):  # it would have to wait for the block
            await semaphore.acquire(on_full="replace")
        with pytest.raises(AcquireTimeout):
            await semaphore.acquire(on_full="replace", timeout=0)
    async with semaphore.cm():
        pass
