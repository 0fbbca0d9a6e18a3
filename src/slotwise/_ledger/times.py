"""Times in whole microseconds: counts based on them are the same in every process."""

from __future__ import annotations


def microseconds(now: float) -> int:
    """Return a time in whole microseconds, rounded so that the time of an alarm is hit exactly."""
    return int(now * 1_000_000 + 0.5)  # no time is negative
