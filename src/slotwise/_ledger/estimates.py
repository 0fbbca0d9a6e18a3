"""Estimate when a newcomer is served, from how long slots are held and who is ahead of it.

This module keeps the hold times; `path_estimates` looks at the nodes of a path.

The rule, which the scripts on a Redis server mirror (lua/rules/estimate.lua and its users):

1. A newcomer that would be granted everything at once is served in 0 s.
2. Otherwise each node of its path (a semaphore is one node) has to give what the waiters ahead of
   it and the newcomer itself need, less what is free. Slots come back at `value` per mean hold, a
   rate's units at its own pace. The slowest node counts.
3. Ahead of it at a node are the waiters parked there: of each key at most as many as its
   narrower tiers let through at once. If there are more than `SAMPLE` of them, the first stand for
   all.
4. While no timed hold has ended, it is not known when slots come back: None.
5. Nobody is served before a pause ends; if nothing else is known, that is the estimate.

It is an estimate, not a bound: holds vary, waiters leave, and others may have a head start.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from slotwise._ledger.slots import UNLIMITED

# How many of those ahead are counted.
SAMPLE = 100
# Beyond this many holds, the weight of what is known is halved.
RECENT = 32


class HoldTimes:
    """How long slots are held: the slot-seconds of recent holds, and how many slots those were."""

    __slots__ = ("busy", "ended", "since")

    def __init__(self, busy: float = 0.0, ended: float = 0.0) -> None:
        self.busy = busy
        self.ended = ended
        self.since = 0.0

    @property
    def mean(self) -> float | None:
        """The mean hold in seconds; None if none has ended yet."""
        return self.busy / self.ended if self.ended else None

    def note(self, seconds: float, slots: int = 1) -> None:
        """Note that this many slots were held for that long."""
        if seconds > 0.0:
            self.busy += seconds * slots
        self.ended += slots
        if self.ended > RECENT:
            self._forget_half()

    # Where it isn't known when a slot was taken, the time of all held slots is counted together:
    # the average number held is the rate of ends times the mean hold.

    def begin(self, now: float) -> None:
        """Count what is held from now on."""
        self.since = now

    def pass_time(self, now: float, in_use: int) -> None:
        """Note that this many slots have been held since the last call, or since `begin`."""
        self.busy += max(now - self.since, 0.0) * in_use
        self.since = now

    def end(self, now: float, in_use: int, slots: int) -> None:
        """Note that this many of the held slots come back."""
        if now > self.since:
            self.busy += (now - self.since) * in_use
        self.since = now
        self.ended = ended = self.ended + slots
        if ended > RECENT:
            self._forget_half()

    def _forget_half(self) -> None:
        scale = RECENT / 2 / self.ended
        self.busy, self.ended = self.busy * scale, self.ended * scale


# ----------------------------------------------------------------------- one node


def total(sizes: Iterable[float], count: int) -> float:
    """Return the sum of ``count`` numbers, by the first of them if they are many."""
    first = [*islice(sizes, SAMPLE)]
    return sum(first) * count / len(first) if first else 0.0


def slots_in(missing: float, value: int, mean: float | None) -> float | None:
    """Return in how many seconds ``missing`` more slots of ``value`` are free."""
    if missing <= 0 or value == UNLIMITED:
        return 0.0
    return None if mean is None else missing * mean / value
