"""What every driver promises, in either way of speaking to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from slotwise import (
    AcquireTimeout,
    AcquisitionResult,
    Semaphore,
    SemaphoreClosed,
    SemaphoreStats,
    ValueConflict,
)
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]


# ------------------------------------------------------------- taking, giving


async def test_slots_are_granted_up_to_the_value_and_not_beyond(make: Make, speak: Speak) -> None:
    semaphore = make(2)
    first = await speak.acquire(semaphore)
    assert not await speak.locked(semaphore)
    await speak.acquire(semaphore)
    assert await speak.locked(semaphore)
    assert await speak.try_acquire(semaphore) is None
    assert await speak.release(semaphore, first) is True
    assert not await speak.locked(semaphore)
    assert await speak.try_acquire(semaphore) is not None


async def test_instances_of_one_name_are_one_semaphore(make: Make, speak: Speak) -> None:
    one, other = make(1), make(1)
    acquired = await speak.acquire(one)
    assert await speak.locked(other)
    assert await speak.release(other, acquired.acquisition_id) is True
    assert not await speak.locked(one)


async def test_slot_numbers_are_the_lowest_free_and_unique(make: Make, speak: Speak) -> None:
    semaphore = make(3)
    held = [await speak.acquire(semaphore) for _ in range(3)]
    assert [acquired.slot_number for acquired in held] == [1, 2, 3]
    await speak.release(semaphore, held[1])
    await speak.release(semaphore, held[0])
    assert (await speak.acquire(semaphore)).slot_number == 1
    assert (await speak.acquire(semaphore)).slot_number == 2


async def test_several_slots_are_granted_together_or_not_at_all(make: Make, speak: Speak) -> None:
    semaphore = make(3)
    pair = await speak.acquire(semaphore, 2)
    assert pair.slot_number == 1
    assert await speak.try_acquire(semaphore, 2) is None
    single = await speak.try_acquire(semaphore)
    assert single is not None
    assert single.slot_number == 3
    await speak.release(semaphore, pair)
    assert await speak.stats(semaphore) == SemaphoreStats(1, 3)


async def test_more_slots_than_the_value_are_refused_at_once(make: Make, speak: Speak) -> None:
    semaphore = make(2)
    with pytest.raises(ValueError, match=r"3 slots .* 2"):
        await speak.acquire(semaphore, 3)
    with pytest.raises(ValueError, match=r"3 slots .* 2"):
        await speak.try_acquire(semaphore, 3)
    assert await speak.stats(semaphore) == SemaphoreStats(0, 2)


async def test_a_second_release_frees_nothing(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    acquired = await speak.acquire(semaphore)
    assert await speak.release(semaphore, acquired) is True
    successor = await speak.acquire(semaphore)
    assert await speak.release(semaphore, acquired) is False
    assert await speak.release(semaphore, acquired.acquisition_id) is False
    assert await speak.locked(semaphore)
    assert await speak.release(semaphore, successor) is True


async def test_an_id_of_another_semaphore_frees_nothing(
    make: Make, speak: Speak, name: str
) -> None:
    semaphore, stranger = make(1), make(1, name=name + "-other")
    mine, theirs = await speak.acquire(semaphore), await speak.acquire(stranger)
    assert await speak.release(semaphore, theirs) is False
    assert await speak.locked(semaphore)
    assert await speak.locked(stranger)
    assert await speak.release(semaphore, mine) is True
    assert await speak.release(stranger, theirs) is True


async def test_the_twins_may_be_mixed(make: Make) -> None:
    semaphore = make(1)
    acquired = await asyncio.to_thread(semaphore.acquire_sync)
    assert await semaphore.release(acquired) is True
    acquired = await semaphore.acquire()
    assert semaphore.release_sync(acquired) is True


# ------------------------------------------------------------------- the queue


async def test_waiters_are_served_in_the_order_of_arrival(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    holder = await speak.acquire(semaphore)
    order: list[int] = []

    async def wait(number: int) -> None:
        acquired = await speak.acquire(semaphore)
        order.append(number)
        await speak.release(semaphore, acquired)

    waiting = []
    for number in range(5):
        waiting.append(asyncio.create_task(wait(number)))
        await speak.waiting(semaphore, number + 1)
    await speak.release(semaphore, holder)
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert await speak.stats(semaphore) == SemaphoreStats(0, 1)


async def test_a_newcomer_does_not_pass_a_waiter(make: Make, speak: Speak) -> None:
    semaphore = make(2)
    holder = await speak.acquire(semaphore)
    wide = asyncio.create_task(speak.acquire(semaphore, 2))
    await speak.waiting(semaphore, 1)
    # One slot is free, but the first in the queue wants two.
    assert await speak.try_acquire(semaphore) is None
    assert await speak.locked(semaphore)
    await speak.release(semaphore, holder)
    await speak.release(semaphore, await wide)


async def test_a_wait_ends_with_the_time_out_and_a_diagnosis(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    await speak.acquire(semaphore)
    with pytest.raises(AcquireTimeout, match=r"in 0\.05 s: 1 of 1 held, 0 others waiting"):
        await speak.acquire(semaphore, timeout=0.05)
    assert await speak.stats(semaphore) == SemaphoreStats(1, 1)


async def test_time_out_zero_does_not_wait(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    acquired = await speak.acquire(semaphore, timeout=0)
    with pytest.raises(TimeoutError):
        await speak.acquire(semaphore, timeout=0)
    await speak.release(semaphore, acquired)
    await speak.acquire(semaphore, timeout=0)


async def test_max_acquire_time_is_the_time_out_of_who_gives_none(make: Make, speak: Speak) -> None:
    semaphore = make(1, max_acquire_time=0.05)
    acquired = await speak.acquire(semaphore)
    with pytest.raises(AcquireTimeout):
        await speak.acquire(semaphore)
    patient = asyncio.create_task(speak.acquire(semaphore, timeout=None))
    await speak.waiting(semaphore, 1)
    await speak.release(semaphore, acquired)
    await patient


async def test_who_timed_out_leaves_the_others_in_order(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    holder = await speak.acquire(semaphore)
    impatient = asyncio.create_task(speak.acquire(semaphore, timeout=0.1))
    await speak.waiting(semaphore, 1)
    patient = asyncio.create_task(speak.acquire(semaphore))
    await speak.waiting(semaphore, 2)
    with pytest.raises(AcquireTimeout, match="1 others waiting"):
        await impatient
    await speak.release(semaphore, holder)
    await patient


async def test_a_cancelled_wait_takes_nothing(make: Make) -> None:
    semaphore = make(1)
    holder = await semaphore.acquire()
    waiting = [asyncio.create_task(semaphore.acquire()) for _ in range(3)]
    await Speak(sync=False).waiting(semaphore, 3)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert (await semaphore.stats()).waiting == 2
    await semaphore.release(holder)
    await semaphore.release(await waiting[1])
    await semaphore.release(await waiting[2])
    assert await semaphore.stats() == SemaphoreStats(0, 1)


async def test_asyncio_timeout_works_around_any_wait(make: Make) -> None:
    semaphore = make(1)
    await semaphore.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await semaphore.acquire()
    assert await semaphore.stats() == SemaphoreStats(1, 1)


# ------------------------------------------------------------ context managers


async def test_cm_gives_the_acquisition_and_frees_it_at_the_end(make: Make) -> None:
    semaphore = make(1)
    async with semaphore.cm() as acquired:
        assert isinstance(acquired, AcquisitionResult)
        assert acquired.slot_number == 1
        assert await semaphore.locked()
    assert not await semaphore.locked()


async def test_cm_frees_its_slot_when_the_block_fails(make: Make) -> None:
    semaphore = make(1)
    with pytest.raises(LookupError):
        async with semaphore.cm():
            raise LookupError
    assert not await semaphore.locked()


async def test_cm_works_in_a_plain_thread(make: Make) -> None:
    semaphore = make(1)

    def work() -> int:
        with semaphore.cm() as acquired:
            assert semaphore.locked_sync()
            return acquired.slot_number

    assert await asyncio.to_thread(work) == 1
    assert not await semaphore.locked()


async def test_a_cm_can_be_entered_once(make: Make) -> None:
    semaphore = make(2)
    cm = semaphore.cm()
    async with cm:
        with pytest.raises(RuntimeError, match="entered before"):
            async with cm:
                pass
        assert (await semaphore.stats()).acquired_slots == 1
    with pytest.raises(RuntimeError, match="entered before"):
        async with cm:
            pass
    assert await semaphore.stats() == SemaphoreStats(0, 2)


async def test_a_cm_that_was_not_entered_cannot_be_left(make: Make) -> None:
    with pytest.raises(RuntimeError, match="without being entered"):
        await make(1).cm().__aexit__(None, None, None)


async def test_cm_takes_slots_and_a_time_out(make: Make) -> None:
    semaphore = make(3)
    async with semaphore.cm(2):
        with pytest.raises(AcquireTimeout):
            async with semaphore.cm(2, timeout=0.01):
                pass
        assert await semaphore.stats() == SemaphoreStats(2, 3)


async def test_blocks_nest_and_each_frees_its_own(make: Make) -> None:
    semaphore = make(3)
    async with semaphore as given:
        assert given is None
        async with semaphore:
            assert (await semaphore.stats()).acquired_slots == 2
        assert (await semaphore.stats()).acquired_slots == 1
    assert await semaphore.stats() == SemaphoreStats(0, 3)


async def test_blocks_of_many_tasks_share_one_instance(make: Make) -> None:
    semaphore = make(3)
    inside = most = 0
    full = asyncio.Event()  # the first ones stay until all slots are taken

    async def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            async with semaphore:
                inside += 1
                most = max(most, inside)
                if inside == 3:
                    full.set()
                await full.wait()
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*[work() for _ in range(10)])
    assert most == 3
    assert await semaphore.stats() == SemaphoreStats(0, 3)


async def test_blocks_work_in_plain_threads(make: Make) -> None:
    semaphore = make(1)
    inside: list[int] = []

    def work() -> None:
        for _ in range(20):
            with semaphore:
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    await asyncio.gather(*[asyncio.to_thread(work) for _ in range(4)])
    assert await semaphore.stats() == SemaphoreStats(0, 1)


async def test_a_blocking_call_in_a_running_loop_is_refused(make: Make) -> None:
    semaphore = make(1)
    with pytest.raises(RuntimeError, match="event loop"):
        semaphore.acquire_sync()
    with pytest.raises(RuntimeError, match="event loop"):
        semaphore.__enter__()
    with pytest.raises(RuntimeError, match="event loop"):
        semaphore.cm().__enter__()
    assert await semaphore.stats() == SemaphoreStats(0, 1)


# ------------------------------------------------------------------------- ttl


async def test_the_end_of_the_ttl_frees_the_slot_for_the_next(make: Make, speak: Speak) -> None:
    semaphore = make(1, ttl=0.2)
    first = await speak.acquire(semaphore)
    second = await speak.acquire(semaphore, timeout=30)
    assert await speak.release(semaphore, first) is False
    assert await speak.release(semaphore, second) is True


async def test_cancel_task_after_ttl_cancels_the_holder(make: Make) -> None:
    semaphore = make(1, ttl=0.05, cancel_task_after_ttl=True)

    async def hang() -> None:
        async with semaphore.cm():
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(hang())
    assert not await semaphore.locked()


async def test_an_expired_acquisition_is_lost(make: Make) -> None:
    semaphore = make(1, ttl=0.05)
    acquired = await semaphore.acquire()
    assert not acquired.lost.is_set()
    async with asyncio.timeout(30):
        await acquired.lost
    assert acquired.lost.is_set()


# --------------------------------------------------------------- value, resize


async def test_another_value_conflicts_while_in_use(make: Make, speak: Speak) -> None:
    held = await speak.acquire(make(2))
    other = make(3)
    with pytest.raises(ValueConflict, match=r"2 slots, not 3"):
        await speak.acquire(other)
    with pytest.raises(ValueError, match="resize"):
        await speak.try_acquire(other)
    await speak.release(make(2), held)
    await speak.acquire(other)
    assert await speak.stats(other) == SemaphoreStats(1, 3)


async def test_growing_wakes_waiters(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    await speak.acquire(semaphore)
    waiting = [asyncio.create_task(speak.acquire(semaphore)) for _ in range(2)]
    await speak.waiting(semaphore, 2)
    await speak.resize(semaphore, 3)
    await asyncio.gather(*waiting)
    assert await speak.stats(semaphore) == SemaphoreStats(3, 3)


async def test_after_a_shrink_nothing_is_granted_until_it_fits(make: Make, speak: Speak) -> None:
    semaphore = make(3)
    held = [await speak.acquire(semaphore) for _ in range(3)]
    await speak.resize(semaphore, 1)
    waiter = asyncio.create_task(speak.acquire(semaphore))
    await speak.waiting(semaphore, 1)
    await speak.release(semaphore, held[0])
    await speak.release(semaphore, held[1])
    assert await speak.stats(semaphore) == SemaphoreStats(1, 1, 1)
    await speak.release(semaphore, held[2])
    assert (await waiter).slot_number == 1


async def test_waiters_that_can_never_fit_any_more_fail(make: Make, speak: Speak) -> None:
    semaphore = make(3)
    await speak.acquire(semaphore)
    wide = asyncio.create_task(speak.acquire(semaphore, 3))
    await speak.waiting(semaphore, 1)
    await speak.resize(semaphore, 2)
    with pytest.raises(ValueError, match="3 slots"):
        await wide
    assert await speak.stats(semaphore) == SemaphoreStats(1, 2)


async def test_instances_with_the_old_value_follow_a_resize(make: Make, speak: Speak) -> None:
    earlier = make(2)
    await speak.acquire(earlier)
    await speak.resize(earlier, 5)
    later = make(2)
    await speak.acquire(later)
    assert await speak.stats(later) == await speak.stats(earlier) == SemaphoreStats(2, 5)


# ----------------------------------------------------------------------- close


async def test_close_fails_waiters_and_newcomers_but_not_holders(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    held = await speak.acquire(semaphore)
    waiter = asyncio.create_task(speak.acquire(semaphore))
    await speak.waiting(semaphore, 1)
    await speak.close(semaphore)
    with pytest.raises(SemaphoreClosed):
        await waiter
    with pytest.raises(SemaphoreClosed):
        await speak.acquire(semaphore)
    with pytest.raises(SemaphoreClosed):
        await speak.try_acquire(semaphore)
    assert await speak.release(semaphore, held) is True


async def test_close_may_be_called_again(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    await speak.close(semaphore)
    await speak.close(semaphore)
    with pytest.raises(SemaphoreClosed):
        await speak.acquire(semaphore)


async def test_a_name_is_free_again_when_the_last_holder_has_left(make: Make, speak: Speak) -> None:
    closed = make(1)
    held = await speak.acquire(closed)
    await speak.close(closed)
    newcomer = make(1)
    with pytest.raises(SemaphoreClosed):
        await speak.acquire(newcomer)
    assert await speak.release(newcomer, held) is True
    await speak.release(make(1), await speak.acquire(newcomer))
    await speak.acquire(make(1))
    with pytest.raises(SemaphoreClosed):
        await speak.acquire(closed)


# ------------------------------------------------------------------- arguments


@pytest.mark.parametrize("value", [0, -1])
def test_a_value_below_one_is_refused(make: Make, value: int) -> None:
    with pytest.raises(ValueError, match=f"value must be at least 1, not {value}"):
        make(value)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_value_that_is_no_int_is_refused(make: Make, value: object) -> None:
    with pytest.raises(TypeError, match="value must be an int"):
        make(value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 10**400])
@pytest.mark.parametrize("option", ["ttl", "max_acquire_time"])
def test_times_must_be_finite_and_above_zero(make: Make, option: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=option):
        make(1, **{option: seconds})


@pytest.mark.parametrize("option", ["ttl", "max_acquire_time"])
def test_times_must_be_numbers(make: Make, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        make(1, **{option: "1"})
    with pytest.raises(TypeError, match=option):
        make(1, **{option: True})


def test_names_must_be_non_empty_text(make: Make) -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        make(1, name="")
    with pytest.raises(TypeError, match="name must be a str"):
        make(1, name=7)


async def test_bad_slots_and_time_outs_are_refused(make: Make, speak: Speak) -> None:
    semaphore = make(2)
    with pytest.raises(ValueError, match="slots"):
        await speak.acquire(semaphore, 0)
    with pytest.raises(TypeError, match="slots"):
        await speak.acquire(semaphore, True)
    with pytest.raises(TypeError, match="slots"):
        await speak.acquire(semaphore, 1.0)
    with pytest.raises(ValueError, match="timeout"):
        await speak.acquire(semaphore, timeout=-1)
    with pytest.raises(TypeError, match="release takes"):
        await speak.release(semaphore, 7)  # type: ignore[arg-type]
    assert await speak.stats(semaphore) == SemaphoreStats(0, 2)
