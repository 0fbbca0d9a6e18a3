"""Check what orders waiters: head starts, and the weights of keys."""

from __future__ import annotations

import math

from slotwise._core.redaction import kind_of

# A longer head start, in seconds, counts as this: a year.
_MOST_SECONDS = 3e7

# Beyond these the shares of two keys can't be counted together in doubles.
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1e6


def check_priority(given: object) -> int:
    """Return a head start in microseconds, given in seconds; it may be negative."""
    if type(given) is int and given == 0:  # nearly always
        return 0
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"priority must be a number of seconds, not {kind_of(given)}")
    if isinstance(given, float) and not math.isfinite(given):
        raise ValueError(f"priority must be finite, not {given}")
    return round(max(-_MOST_SECONDS, min(given, _MOST_SECONDS)) * 1_000_000)


def check_weight(what: str, given: object) -> float:
    """Return the weight of a key; above 0."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{what} must be a number, not {kind_of(given)}")
    if not _LEAST_WEIGHT <= given <= _MOST_WEIGHT:  # so nan is refused too
        raise ValueError(
            f"{what} must be between {_LEAST_WEIGHT:g} and {_MOST_WEIGHT:g}, not {given}"
        )
    return float(given)
