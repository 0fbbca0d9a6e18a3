"""A check of rates that knows nothing of how they are kept: only what was taken, and when.

For every window that ends with a grant: what was reserved in it, and by how much that was
corrected in it, is at most rate * length + burst.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple


class Taken(NamedTuple):
    """Units that were taken of a rate at a time in seconds, or given back if negative."""

    at: float
    units: int
    by_grant: bool = False


_ROUNDING = 2e-6  # the times are whole microseconds, as floats of seconds


def fullest_window(taken: Iterable[Taken], per_second: float, burst: int) -> float:
    """By how much of the burst the fullest window was used; above 1 is a fault.

    What was taken is given in the order in which it was, also within one microsecond: a window
    may begin between two that were taken at the same time.
    """
    used = fullest = 0.0
    least, begin = inf, None  # of all windows: what was used before, less what came back by then
    for each in taken:
        begin = each.at if begin is None else begin
        came_back = (each.at - begin) * per_second
        least = min(least, used - came_back)
        used += each.units
        if each.by_grant:
            excess = used - came_back - least - _ROUNDING * per_second
            fullest = max(fullest, excess / burst)
    return fullest


def share_used(taken: Iterable[Taken], per_second: float, between: tuple[float, float]) -> float:
    """How much of what came back between two times was used."""
    begin, end = between
    used = sum(each.units for each in taken if begin <= each.at <= end)
    return used / (per_second * (end - begin))
