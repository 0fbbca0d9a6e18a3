"""Who holds, who waits, and ending somebody's acquisition: the same on every driver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slotwise import MemorySemaphore, Semaphore, Tier, Tiers
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


@pytest.mark.parametrize("kind", ["memory", "process", "redis"])
async def test_holders_of_tiers_are_shown_with_their_ttl(
    kind: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("server").url if kind == "redis" else f"{kind}://"
    url = f"process://{tmp_path}" if kind == "process" else url
    limits = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name=name, url=url, ttl=60)
    held = await limits.acquire(tenant="acme")
    waiting = asyncio.create_task(limits.acquire(tenant="acme"))
    while not await limits.waiters():
        await asyncio.sleep(0.001)
    assert [each.ttl for each in await limits.holders()] == [60]
    assert [each.ttl for each in await limits.waiters()] == [60]
    await limits.release(held)
    await limits.release(await waiting)


async def test_holders_are_listed_the_longest_first(make: Make, speak: Speak) -> None:
    sem = make(4)
    acquired = [await speak.acquire(sem) for _ in range(4)]
    await speak.release(sem, acquired.pop(0))
    acquired.append(await speak.acquire(sem))
    shown = [holder.acquisition_id for holder in await speak.holders(sem)]
    assert shown == [each.acquisition_id for each in acquired]


async def test_labels_can_be_given_however_slots_are_taken(make: Make, speak: Speak) -> None:
    sem = make(3)
    first = await speak.try_acquire(sem, label="tried")
    async with sem.cm(label="in a block"):
        second = await speak.acquire(sem, label="acquired")
        labels = [holder.label for holder in await speak.holders(sem)]
        assert labels == ["tried", "in a block", "acquired"]
    assert first is not None
    await speak.release(sem, first)
    await speak.release(sem, second)


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


async def test_waiters_are_listed_in_the_order_of_the_queue(make: Make, speak: Speak) -> None:
    sem = make(1)
    held = await speak.acquire(sem)
    waiting = []
    for count in range(1, 4):
        acquiring = speak.acquire(sem, label=f"number {count}")
        waiting.append(asyncio.create_task(acquiring))
        await speak.waiting(sem, count)
    waiters = await speak.waiters(sem)
    assert [waiter.label for waiter in waiters] == ["number 1", "number 2", "number 3"]
    assert {waiter.slot_number for waiter in waiters} == {None}
    assert all(waiter.since is not None for waiter in waiters)
    for task in waiting:
        await speak.release(sem, held)
        held = await task
    await speak.release(sem, held)
    assert await speak.waiters(sem) == []


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


async def test_an_acquisition_that_has_ended_or_never_was_is_not_kicked(
    make: Make, speak: Speak
) -> None:
    sem = make(2)
    acquired = await speak.acquire(sem)
    await speak.release(sem, acquired)
    assert not await speak.kick(sem, acquired)
    assert not await speak.kick(sem, "nobody")
    kicked = await speak.acquire(sem)
    assert await speak.kick(sem, kicked)
    assert not await speak.kick(sem, kicked)


async def test_a_request_that_waits_is_not_kicked(make: Make, speak: Speak) -> None:
    sem = make(1)
    held = await speak.acquire(sem)
    waiting = asyncio.create_task(speak.acquire(sem))
    await speak.waiting(sem, 1)
    (waiter,) = await speak.waiters(sem)
    assert not await speak.kick(sem, waiter.acquisition_id)
    await speak.release(sem, held)
    await speak.release(sem, await waiting)


async def test_one_semaphore_does_not_show_or_kick_what_another_one_has(
    make: Make, speak: Speak, name: str
) -> None:
    sem, other = make(2), make(2, name=f"{name}-other")
    acquired = await speak.acquire(sem)
    assert await speak.holders(other) == []
    assert not await speak.kick(other, acquired)
    assert not acquired.lost.is_set()
    await speak.release(sem, acquired)


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
        with pytest.raises(ValueError, match="which can't be kicked"):
            await sem.kick(block.acquisition_id)
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
