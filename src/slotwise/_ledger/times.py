"""Times in whole microseconds: what is counted in them is the same in every process."""

from __future__ import annotations


def microseconds(now: float) -> int:
    """A time in whole microseconds; that of an alarm is hit exactly."""
    return int(now * 1_000_000 + 0.5)  # no time is negative
