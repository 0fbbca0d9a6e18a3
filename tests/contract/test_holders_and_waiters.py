"""Who holds, who waits, and ending somebody's acquisition: the same on every driver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from slotwise import MemorySemaphore, Semaphore
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]


async def test_a_holder_is_shown_with_its_id_slots_label_and_process(
    make: Make, speak: Speak
) -> None:
    sem = make(3)
    acquired = await speak.acquire(sem, 2, label="nightly export")
    (holder,) = await speak.holders(sem)
    assert holder.acquisition_id == acquired.acquisition_id
    assert (holder.slots, holder.label, holder.slot_number) == (2, "nightly export", 1)
    assert holder.host
    assert holder.pid == os.getpid()
    assert holder.since is not None
    assert abs(datetime.now(UTC) - holder.since) < timedelta(minutes=1)
    await speak.release(sem, acquired)
    assert await speak.holders(sem) == []


async def test_holders_and_waiters_are_shown_with_their_ttl(make: Make, speak: Speak) -> None:
    sem, brief, endless = make(1, ttl=60), make(1, ttl=2.5), make(1)
    held = await speak.acquire(sem)
    waiting = []
    for count, other in enumerate((brief, endless), 1):
        waiting.append(asyncio.create_task(speak.acquire(other)))
        await speak.waiting(sem, count)
    assert [each.ttl for each in await speak.holders(sem)] == [60]
    assert [each.ttl for each in await speak.waiters(sem)] == [2.5, None]
    for task in waiting:
        await speak.release(sem, held)
        held = await task
    assert [each.ttl for each in await speak.holders(sem)] == [None]
    await speak.release(sem, held)


async def test_blocks_without_a_label_count_as_holders(make: Make, speak: Speak) -> None:
    sem = make(3)
    async with sem, sem:
        named = await speak.acquire(sem)
        holders = await speak.holders(sem)
        assert sorted(holder.slot_number or 0 for holder in holders) == [1, 2, 3]
        assert len({holder.acquisition_id for holder in holders}) == 3
        assert {holder.pid for holder in holders} == {os.getpid()}
        await speak.release(sem, named)
    assert await speak.holders(sem) == []


async def test_a_block_that_waits_is_a_waiter(make: Make, speak: Speak) -> None:
    sem = make(1)
    held = await speak.acquire(sem)

    async def enter() -> None:
        async with sem:
            pass

    blocks = [asyncio.create_task(enter()) for _ in range(2)]
    await speak.waiting(sem, 2)
    waiters = await speak.waiters(sem)
    assert len({waiter.acquisition_id for waiter in waiters}) == 2
    await speak.release(sem, held)
    await asyncio.gather(*blocks)


async def test_a_kick_tells_the_holder_and_serves_the_next_waiter(make: Make, speak: Speak) -> None:
    sem = make(1)
    held = await speak.acquire(sem, label="stuck")
    waiting = asyncio.create_task(speak.acquire(sem))
    await speak.waiting(sem, 1)
    assert await speak.kick(sem, held.acquisition_id)
    async with asyncio.timeout(30):
        following = await waiting
        await held.lost
    assert held.lost.reason == "it was kicked"
    assert not await speak.release(sem, held), "its slot is somebody else's by now"
    assert [each.acquisition_id for each in await speak.holders(sem)] == [following.acquisition_id]
    await speak.release(sem, following)


async def test_a_wrong_label_is_refused_before_anything_is_taken(make: Make) -> None:
    sem = make(1)
    for wrong in (7, b"bytes"):
        with pytest.raises(TypeError, match="label"):
            await sem.acquire(label=wrong)  # type: ignore[arg-type]
    assert not await sem.locked()


async def test_a_block_of_the_memory_driver_cannot_be_told_and_so_not_kicked(name: str) -> None:
    sem = MemorySemaphore(1, name=name)
    async with sem:
        (block,) = await sem.holders()
        assert not await sem.kick(block.acquisition_id)
        assert not await sem.release(block.acquisition_id)
    assert not await sem.locked()


async def test_blocks_of_a_semaphore_with_a_ttl_can_be_kicked(make: Make, speak: Speak) -> None:
    sem = make(1, ttl=60)
    async with sem:
        (block,) = await speak.holders(sem)
        assert await speak.kick(sem, block.acquisition_id)
        other = await speak.acquire(sem, timeout=10)
    assert len(await speak.holders(sem)) == 1
    await speak.release(sem, other)
