"""A check of rates that knows nothing of how they are kept: only what was taken, and when.

For every window that ends with a grant: what was reserved in it, and by how much that was
corrected in it, is at most rate * length + burst.

A grant's time is known exactly. A correction travels, so of its time only bounds may be known:
it counts against a rate where it certainly was in the window, and for it where it perhaps was.
So what is reported is a fault, whatever the delays were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
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

    In which order things were done within a microsecond is not known: the best for the rate is
    assumed.
    """
    # What happens, in the order of time: refunds when they may have been, before the grants of the
    # same time, and further charges when they certainly were, after them.
    happened: list[tuple[float, int, Taken]] = []
    for each in taken:
        if each.by_grant:
            happened.append((each.latest, 1, each))
        else:
            happened.append((each.earliest, 0, each) if each.units < 0 else (each.latest, 2, each))
    happened.sort(key=lambda entry: entry[:2])
    # Windows by their beginnings: what was used before, less what came back until then. What is
    # put into the past is taken off that.
    begins: list[float] = []
    before: list[float] = []
    refunds: list[Taken] = []  # that may be later than the last beginning
    used, fullest = 0.0, 0.0
    for when, _, each in happened:
        if when == inf:
            break
        if not begins or begins[-1] < when:
            refunds = [refund for refund in refunds if refund.latest >= when]
            begins.append(when)
            before.append(used - when * per_second - sum(refund.units for refund in refunds))
        used += each.units
        if each.by_grant:
            excess = used - (when + _ROUNDING) * per_second - min(before)
            fullest = max(fullest, excess / burst)
        elif each.units < 0:
            refunds.append(each)
        else:  # it is not in windows that began after it may have been
            for index in range(bisect_right(begins, each.earliest), len(begins)):
                before[index] += each.units
    return fullest


def share_used(taken: Iterable[Taken], per_second: float, between: tuple[float, float]) -> float:
    """How much of what came back between two times was used."""
    begin, end = between
    used = sum(each.units for each in taken if begin <= each.assumed <= end)
    return used / (per_second * (end - begin))
