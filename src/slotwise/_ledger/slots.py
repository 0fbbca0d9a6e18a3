"""Hand out the lowest free slot numbers.

This module doesn't know who holds a number or waits for one; ledgers do. A taker on the quick
lane pops numbers of ``free`` at any time (see `paths`), so whatever is done here copes with
a heap that loses its numbers meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from heapq import heappop, heappush

from slotwise._ledger.ranges import Ranges, ranges_of

# Elsewhere list and heap operations are not atomic: there `attention` never
# falls, and every caller takes its lock.
QUICK_LANE = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)

UNLIMITED = sys.maxsize  # the value of a node that has no limit

# How many numbers come into circulation at once, and what is handled one by one: with
# that many the quick lane is worth it, and nobody notices the time.
FEW = 1024

# Empty, since a class can't inherit from two with slots. Not a literal, which mypy would take for
# the only attributes.
_SLOTS_OF_SUBCLASSES: tuple[str, ...] = ()

# What most pools have, since most are never shrunk. Shared and therefore never changed.
NO_NUMBERS = Ranges()


class NumberedSlots:
    """The numbers from 1 to the value, each held by at most one; the lowest is taken first."""

    __slots__ = _SLOTS_OF_SUBCLASSES

    circulating: int  # how many numbers are free or held
    free: list[int]  # a heap
    top: int  # the highest number there has been
    value: int
    reserve: Ranges  # numbers out of circulation

    def __init__(self, value: int) -> None:
        self.value = value
        self.free = [1]
        self.circulating = 1
        self.top = 1
        self.reserve = NO_NUMBERS

    @property
    def in_use(self) -> int:
        """How many slots are held."""
        return self.circulating - len(self.free)

    def _pop_free(self) -> int | None:
        try:
            return heappop(self.free)
        except IndexError:
            return None

    def _drain(self) -> list[int]:
        """Empty ``free``; lowest number first."""
        return [*iter(self._pop_free, None)]

    def _take_everything(self) -> bool:
        """Leave nothing to take if nobody holds anything; False, and no change, otherwise."""
        taken = self._drain()
        if len(taken) < self.circulating:
            for number in taken:
                heappush(self.free, number)
            return False
        self.circulating = 0
        return True

    def _put_back(self, number: int) -> None:
        """Put it into ``free``, unless nobody may have it now: a late quick taker might pop it."""
        if self.circulating > self.value:
            self._put_aside(range(number, number + 1))
        else:
            heappush(self.free, number)

    def _put_back_ranges(self, ranges: Sequence[range]) -> None:
        for numbers in ranges:
            if len(numbers) > FEW:
                self._put_aside(numbers)
            else:
                for number in numbers:
                    self._put_back(number)

    def _put_aside(self, numbers: range) -> None:
        """Take numbers that nobody holds out of circulation."""
        if self.reserve is NO_NUMBERS:
            self.reserve = Ranges()
        self.reserve.add(numbers)
        self.circulating -= len(numbers)

    def _take_one(self) -> int | None:
        """Return the lowest number; None if there is none, and may be none."""
        while True:
            try:
                return heappop(self.free)
            except IndexError:
                if not self._mint():
                    return None

    def _take(self, slots: int) -> Sequence[range]:
        """Return that many numbers, lowest first; none at all if there are not enough."""
        if slots > self.value - self.in_use:
            return ()
        taken: list[int] = []
        try:
            while len(taken) < slots:
                taken.append(heappop(self.free))
        except IndexError:
            pass
        missing = slots - len(taken)
        if missing > self.value - self.circulating:  # a taker on the quick lane was faster
            for number in taken:
                heappush(self.free, number)
            return ()
        ranges = ranges_of(taken)
        if missing:
            for numbers in self._draw(missing):
                ranges.add(numbers)
        return ranges

    def _draw(self, how_many: int) -> list[range]:
        """Bring that many numbers into circulation, the lowest that are not, and return them.

        A signal handler may raise between any two steps. What it interrupts is then
        lost; in another order of the steps it would be handed out twice.
        """
        self.circulating += how_many
        drawn = self.reserve.take_lowest(how_many)
        fresh = how_many - sum(map(len, drawn))
        if fresh:
            self.top += fresh
            drawn.append(range(self.top - fresh + 1, self.top + 1))
        return drawn

    def _mint(self) -> bool:
        """Bring more numbers into circulation, the lowest first, if the value allows.

        Fresh ones come in doubling batches: a semaphore of a million slots
        does not start with a list of a million numbers. One by one, so that a signal
        handler that raises in between costs one of them and not the batch.
        """
        missing = self.value - self.circulating
        if missing <= 0:
            return False
        if self.reserve:
            heappush(self.free, self._draw(1)[0].start)
            return True
        for number in range(self.top + 1, self.top + 1 + min(missing, self.circulating or 1, FEW)):
            self.circulating += 1
            self.top = number
            heappush(self.free, number)
        return True

    def restore_numbers(self, held: Ranges) -> None:
        """Let these numbers be held, of a pool that nobody has taken anything of yet."""
        if held:
            self.top = held[-1].stop - 1
            self.circulating = held.total
            self.free = []
            self.reserve = held.gaps()
            self._rebalance()

    def _put_free_aside(self) -> None:
        for number in iter(self._pop_free, None):
            self._put_aside(range(number, number + 1))

    def _rebalance_if_needed(self) -> None:
        """While numbers are in reserve or a shrink is not done: move those that have to."""
        reserve = self.reserve
        if (
            self.circulating > self.value
            or max(self.free, default=0) > reserve[0].start
            or reserve[-1].stop > self.top
            or (self.circulating < self.value and reserve.total <= FEW)
        ):
            self._rebalance()

    def _rebalance(self) -> None:
        """Circulate what is held and, besides that, the lowest numbers that fit the value.

        Numbers left over stay in ``reserve`` until the value grows or a higher
        number comes back, so that newcomers get numbers from 1 to the value. So do the
        lowest ones if they are very many: they are brought back as they are needed.
        """
        self._put_free_aside()
        reserve = self.reserve
        if reserve and reserve[-1].stop > self.top:
            # Nobody has those, nor any above them: they are drawn anew when they are needed.
            self.top = reserve[-1].start - 1
            del reserve[-1]
        if reserve.total <= FEW:
            while reserve and self.circulating < self.value:
                heappush(self.free, self._draw(1)[0].start)
        if not reserve:
            self.reserve = NO_NUMBERS
