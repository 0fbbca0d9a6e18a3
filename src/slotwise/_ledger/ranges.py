"""Ranges: a set of slot numbers, kept as ranges so that a million of them cost what a few do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class Ranges(list[range]):
    """Disjoint ranges of numbers in ascending order, none of which touches the next.

    A list and nothing more, so that asking whether it is empty is cheap.
    """

    __slots__ = ()

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return sum(map(len, self))

    def add(self, numbers: range) -> None:
        """Add numbers that are not in it."""
        if self and self[-1].stop == numbers.start:  # the common case: many, in ascending order
            self[-1] = range(self[-1].start, numbers.stop)
            return
        at = bisect_left(self, numbers.start, key=_start)
        first = last = at
        if at and self[at - 1].stop == numbers.start:
            first = at - 1
            numbers = range(self[first].start, numbers.stop)
        if at < len(self) and self[at].start == numbers.stop:
            last = at + 1
            numbers = range(numbers.start, self[at].stop)
        self[first:last] = [numbers]

    def gaps(self) -> Ranges:
        """Return the numbers from 1 on that are not in it, up to the highest that is."""
        starts = [1, *(numbers.stop for numbers in self[:-1])]
        pairs = zip(starts, self, strict=True)
        return Ranges(range(at, numbers.start) for at, numbers in pairs if at < numbers.start)

    def take_lowest(self, how_many: int) -> list[range]:
        """Remove and return the lowest numbers, ``how_many`` or all."""
        taken: list[range] = []
        for numbers in self:
            if how_many < len(numbers):
                break
            taken.append(numbers)
            how_many -= len(numbers)
        rest = self[len(taken)] if how_many and len(taken) < len(self) else None
        if rest is None:
            del self[: len(taken)]
            return taken
        middle = rest.start + how_many
        self[: len(taken) + 1] = [range(middle, rest.stop)]
        return [*taken, range(rest.start, middle)]


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """The ranges that some numbers make up."""
    ranges = Ranges()
    for number in sorted(numbers):
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    return ranges


def _start(numbers: range) -> int:
    return numbers.start
