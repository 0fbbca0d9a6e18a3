"""What every driver promises of semaphores: several slots, values, resizing, closing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slotwise import (
    Semaphore,
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
