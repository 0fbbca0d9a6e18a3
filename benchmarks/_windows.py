"""A check of rates that knows nothing of how they are kept: only what was taken, and when.

For every window that ends with a grant: what was reserved in it, and by how much that was
corrected in it, is at most rate * length + burst.

A grant's time is known exactly. A correction travels, so of its time only bounds may be known:
it counts against a rate where it certainly was in the window, and for it where it perhaps was.
So what is reported is a fault, whatever the delays were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple


class Taken(NamedTuple):
    """Units that were taken of a rate, or given back if negative, between two times in seconds."""

    earliest: float
    latest: float
    units: int
    by_grant: bool = False

    @property
    def assumed(self) -> float:
        """When it is taken to have been at a first look: the best for the rate."""
        return self.latest if self.units > 0 else self.earliest


def granted(at: float, units: int) -> Taken:
    return Taken(at, at, units, by_grant=True)


_ROUNDING = 2e-6  # the times are whole microseconds, as floats of seconds


def fullest_window(taken: Iterable[Taken], per_second: float, burst: int) -> float:
    """By how much of the burst the fullest window was used; above 1 is a fault.

    One look at each suffices while nothing is wrong: of all windows that end at some time the
    fullest is found by adding, and dropping what is less than nothing. In which order things were
    done within a microsecond is not known: the best for the rate is assumed.
    """
    ordered = sorted(taken, key=lambda each: each.assumed)
    fullest, level, before, first, index = 0.0, 0.0, 0.0, 0, 0
    for when, instant in groupby(ordered, key=lambda each: each.assumed):
        together = [*instant]
        level -= (when - before) * per_second
        if level <= 0:
            level, first = 0.0, index  # a window that began earlier is not fuller
        index += len(together)
        before = when
        level += sum(each.units for each in together if each.by_grant or each.units < 0)
        excess = level - _ROUNDING * per_second
        if any(each.by_grant for each in together):
            if excess > burst:
                excess = _certainly(ordered[first:index], when, per_second)
            fullest = max(fullest, excess / burst)
        level += sum(each.units for each in together if not each.by_grant and each.units > 0)
    return fullest


def _certainly(taken: Sequence[Taken], end: float, per_second: float) -> float:
    """The same for all windows that end with a grant at ``end``, by adding up each of them."""
    fullest = 0.0
    for start in {each.earliest for each in taken}:
        used = sum(
            each.units
            for each in taken
            if (start <= each.earliest and (each.by_grant or each.latest < end))
            or (each.units < 0 and each.latest >= start and each.earliest <= end)
        )
        fullest = max(fullest, used - (end - start + _ROUNDING) * per_second)
    return fullest


def share_used(taken: Iterable[Taken], per_second: float, between: tuple[float, float]) -> float:
    """How much of what came back between two times was used."""
    begin, end = between
    used = sum(each.units for each in taken if begin <= each.assumed <= end)
    return used / (per_second * (end - begin))
