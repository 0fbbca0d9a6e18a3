"""What is raised when a value is given that is not the one a semaphore is in use with."""

from __future__ import annotations

from slotwise.errors import ValueConflict


def value_conflict(
    name: str | None, given: int | None, *, value: int, held: int, waiting: int
) -> ValueConflict:
    return ValueConflict(
        f"{name!r} is in use with {value} slots, not {given}: {held} held, {waiting} waiting;"
        f" resize() changes the value of a semaphore in use",
        value=value,
    )
