"""The quick lane: take a slot, or give it back, without the lock.

This is the rule; why it is safe beside those who have the lock is explained in
`slotwise._ledger.ledger`. Where a call would cost too much, it is inlined:

    take    `MemorySemaphore.__aenter__` and ``__enter__``, `MemoryAcquisition.__aenter__`
    give    `MemorySemaphore.__aexit__` and ``__exit__``, `MemoryAcquisition.__aexit__`

Each copy says so, and ``tests/memory/test_quick_lane_copies.py`` compares it with the rule: the
same checks in the same order, and the same outcome in every state of a tracker.
"""

from __future__ import annotations

from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._wait.clock import glance
from slotwise.memory._log import logged

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition
    from slotwise.memory._tracker import Tracker


def take(tracker: Tracker) -> int:
    """Take the lowest slot number that is free; 0 if the tracker has to be asked.

    It has to be asked if anybody waits, if anybody was woken and has not run yet, if
    something else needs the lock, if nothing is free, or if the acquisition is perhaps logged.
    """
    try:
        if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
            return heappop(tracker.free)
    except LookupError:  # nothing is free, or it isn't known whether anything is logged
        return 0
    return 0


def give(tracker: Tracker, number: int) -> None:
    """Give back a slot that is no longer recorded as held."""
    if tracker.line or tracker.attention:
        tracker.hand_over(number)
    else:
        tracker.last_used = glance.time
        heappush(tracker.free, number)
        if tracker.line or tracker.attention:
            tracker.look_after_waiters()


class Snapshot:
    """The slots of a tracker at one instant: copied quickly, to be looked at later."""

    __slots__ = ("_free", "_holders", "_reserve", "_top", "_tracker")

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._holders = list(tracker.holders.values())
        self._free = list(tracker.free)
        self._reserve = list(tracker.reserve)
        self._top = tracker.top

    def claims(self) -> list[MemoryAcquisition]:
        """Return those who hold slots, the oldest grant first."""
        # Named semaphores share their table of holders.
        tracker = self._tracker
        return [claim for claim in self._holders if claim.semaphore._tracker is tracker]

    def numbers_without_claim(self) -> set[int]:
        """Return the slot numbers of blocks: neither free nor held by an acquisition."""
        numbers = set(range(1, self._top + 1))
        numbers.difference_update(self._free, *self._reserve)
        for claim in self.claims():
            numbers.difference_update(claim.numbers)
        return numbers
