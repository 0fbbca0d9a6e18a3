"""What every driver promises of semaphores: several slots, values, resizing, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from slotwise import (
    AcquireTimeout,
    Semaphore,
    SemaphoreClosed,
    SemaphoreStats,
    ValueConflict,
)
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]


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


async def test_more_slots_than_the_value_are_refused_at_once(make: Make, speak: Speak) -> None:
    semaphore = make(2)
    with pytest.raises(ValueError, match=r"3 slots .* 2"):
        await speak.acquire(semaphore, 3)
    with pytest.raises(ValueError, match=r"3 slots .* 2"):
        await speak.try_acquire(semaphore, 3)
    assert await speak.stats(semaphore) == SemaphoreStats(0, 2)


async def test_cm_takes_slots_and_a_time_out(make: Make) -> None:
    semaphore = make(3)
    async with semaphore.cm(2):
        with pytest.raises(AcquireTimeout):
            async with semaphore.cm(2, timeout=0.01):
                pass
        assert await semaphore.stats() == SemaphoreStats(2, 3)


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


@pytest.mark.parametrize("value", [0, -1])
def test_a_value_below_one_is_refused(make: Make, value: int) -> None:
    with pytest.raises(ValueError, match=f"value must be at least 1, not {value}"):
        make(value)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_value_that_is_not_an_int_is_refused(make: Make, value: object) -> None:
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
    with pytest.raises(TypeError, match="acquisition_id or an AcquisitionResult is needed"):
        await speak.release(semaphore, 7)  # type: ignore[arg-type]
    assert await speak.stats(semaphore) == SemaphoreStats(0, 2)
