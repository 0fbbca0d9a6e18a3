"""What every limit promises: semaphores of every driver, and paths through tiers."""

from __future__ import annotations

import asyncio
import pickle
import re
import time
from collections.abc import Callable

import pytest

from slotwise import (
    AcquireTimeout,
    AcquisitionResult,
    BackendError,
    Limit,
    SemaphoreStats,
    Tier,
    Tiers,
)
from tests.contract.conftest import Speak

Make = Callable[..., Limit]


# ------------------------------------------------------------- taking, giving


async def test_slots_are_granted_up_to_the_value_and_not_beyond(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(2)
    first = await speak.acquire(limit)
    assert not await speak.locked(limit)
    await speak.acquire(limit)
    assert await speak.locked(limit)
    assert await speak.try_acquire(limit) is None
    assert await speak.release(limit, first) is True
    assert not await speak.locked(limit)
    assert await speak.try_acquire(limit) is not None


@pytest.mark.soak
async def test_waited_is_the_time_from_the_request_to_the_grant(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1)
    first = await speak.acquire(limit)
    assert first.waited == 0.0
    asked_at = time.monotonic()
    waiting = asyncio.create_task(speak.acquire(limit))
    async with asyncio.timeout(30):
        while (await limit.stats()).waiting != 1:
            await asyncio.sleep(0.002)
        waits_at = time.monotonic()
        await asyncio.sleep(0.01)
        released_at = time.monotonic()
        await speak.release(limit, first)
        second = await waiting
    assert released_at - waits_at <= second.waited <= time.monotonic() - asked_at
    assert pickle.loads(pickle.dumps(second)).waited == second.waited
    await speak.release(limit, second)


async def test_slot_numbers_are_the_lowest_free_and_unique(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(3)
    held = [await speak.acquire(limit) for _ in range(3)]
    assert [acquired.slot_number for acquired in held] == [1, 2, 3]
    await speak.release(limit, held[1])
    await speak.release(limit, held[0])
    assert (await speak.acquire(limit)).slot_number == 1
    assert (await speak.acquire(limit)).slot_number == 2


async def test_a_second_release_frees_nothing(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1)
    acquired = await speak.acquire(limit)
    assert await speak.release(limit, acquired) is True
    successor = await speak.acquire(limit)
    assert await speak.release(limit, acquired) is False
    assert await speak.release(limit, acquired.acquisition_id) is False
    assert await speak.locked(limit)
    assert await speak.release(limit, successor) is True


async def test_an_id_of_another_semaphore_frees_nothing(
    make_limit: Make, speak: Speak, name: str
) -> None:
    limit, stranger = make_limit(1), make_limit(1, name=name + "-other")
    mine, theirs = await speak.acquire(limit), await speak.acquire(stranger)
    assert await speak.release(limit, theirs) is False
    assert await speak.locked(limit)
    assert await speak.locked(stranger)
    assert await speak.release(limit, mine) is True
    assert await speak.release(stranger, theirs) is True


# ------------------------------------------------------------------- the queue


async def test_waiters_are_served_in_the_order_of_arrival(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1)
    holder = await speak.acquire(limit)
    order: list[int] = []

    async def wait(number: int) -> None:
        acquired = await speak.acquire(limit)
        order.append(number)
        await speak.release(limit, acquired)

    waiting = []
    for number in range(5):
        waiting.append(asyncio.create_task(wait(number)))
        await speak.waiting(limit, number + 1)
    await speak.release(limit, holder)
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert await speak.stats(limit) == SemaphoreStats(0, 1)


async def test_a_wait_ends_with_the_time_out_and_a_diagnosis(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1)
    await speak.acquire(limit)
    for timeout in (0.05, 0.5, 5):  # until the server has had the time to answer
        with pytest.raises(AcquireTimeout, match=rf"in {timeout:g} s") as timed_out:
            await speak.acquire(limit, timeout=timeout)
        if "did not answer" not in str(timed_out.value):
            break
    assert re.search(" 1 of 1 held.*, 0 .*waiting", str(timed_out.value))
    assert await speak.stats(limit) == SemaphoreStats(1, 1)


async def test_time_out_zero_does_not_wait(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1)

    async def at_once() -> AcquisitionResult:
        while True:
            try:
                return await speak.acquire(limit, timeout=0)
            except BackendError:  # a server on a busy machine may need more than 0.2 s to answer
                pass

    acquired = await at_once()
    with pytest.raises(TimeoutError):
        await at_once()
    await speak.release(limit, acquired)
    await at_once()


# ------------------------------------------------------------ context managers


async def test_cm_gives_the_acquisition_and_frees_it_at_the_end(make_limit: Make) -> None:
    limit = make_limit(1)
    async with limit.cm() as acquired:
        assert isinstance(acquired, AcquisitionResult)
        assert acquired.slot_number == 1
        assert await limit.locked()
    assert not await limit.locked()


async def test_cm_frees_its_slot_when_the_block_fails(make_limit: Make) -> None:
    limit = make_limit(1)
    with pytest.raises(LookupError):
        async with limit.cm():
            raise LookupError
    assert not await limit.locked()


async def test_a_cm_can_be_entered_once(make_limit: Make) -> None:
    limit = make_limit(2)
    cm = limit.cm()
    async with cm:
        with pytest.raises(RuntimeError, match="entered before"):
            async with cm:
                pass
        assert (await limit.stats()).acquired_slots == 1
    with pytest.raises(RuntimeError, match="entered before"):
        async with cm:
            pass
    assert await limit.stats() == SemaphoreStats(0, 2)


async def test_blocks_nest_and_each_frees_its_own(make_limit: Make) -> None:
    limit = make_limit(3)
    async with limit as given:
        assert given is None
        async with limit:
            assert (await limit.stats()).acquired_slots == 2
        assert (await limit.stats()).acquired_slots == 1
    assert await limit.stats() == SemaphoreStats(0, 3)


async def test_blocks_work_in_plain_threads(make_limit: Make) -> None:
    limit = make_limit(1)
    inside: list[int] = []

    def work() -> None:
        for _ in range(20):
            with limit:
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    await asyncio.gather(*[asyncio.to_thread(work) for _ in range(4)])
    assert await limit.stats() == SemaphoreStats(0, 1)


async def test_a_blocking_call_in_a_running_loop_is_refused(make_limit: Make) -> None:
    limit = make_limit(1)
    with pytest.raises(RuntimeError, match="event loop"):
        limit.acquire_sync()
    with pytest.raises(RuntimeError, match="event loop"):
        limit.__enter__()
    with pytest.raises(RuntimeError, match="event loop"):
        limit.cm().__enter__()
    assert await limit.stats() == SemaphoreStats(0, 1)


# ------------------------------------------------------------------------- ttl


async def test_the_end_of_the_ttl_frees_the_slot_for_the_next(
    make_limit: Make, speak: Speak
) -> None:
    limit = make_limit(1, ttl=0.2)
    first = await speak.acquire(limit)
    second = await speak.acquire(limit, timeout=30)
    assert await speak.release(limit, first) is False
    await speak.release(limit, second)  # on a slow machine its own ttl may have ended, too


async def test_cancel_task_after_ttl_cancels_the_holder(make_limit: Make) -> None:
    limit = make_limit(1, ttl=0.05, cancel_task_after_ttl=True)

    async def hang() -> None:
        async with limit.cm():
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(hang())
    assert not await limit.locked()


async def test_an_expired_acquisition_is_lost(make_limit: Make, name: str) -> None:
    limit, patient = make_limit(1, ttl=0.05), make_limit(1, ttl=600, name=name + "-patient")
    acquired, kept = await limit.acquire(), await patient.acquire()
    async with asyncio.timeout(30):
        await acquired.lost
    assert acquired.lost.is_set()
    assert not kept.lost.is_set()


# ------------------------------------------------------------------- arguments


async def test_a_path_is_locked_while_somebody_waits_for_more_slots_than_are_free(
    name: str,
) -> None:
    tiers = Tiers(Tier("tenant", 3, keyed=True), Tier("all", 9), name=name)
    path = tiers.at(tenant="acme")
    held = await path.acquire(2)
    waiting = asyncio.create_task(path.acquire(3))
    while not (await path.stats()).waiting:
        await asyncio.sleep(0)
    assert await path.locked() is True, "the free slot is not for newcomers"
    assert await path.try_acquire() is None
    assert (await path.explain()).lacks
    await path.release(held)
    await path.release(await waiting)
    assert await path.locked() is False
