"""The quick lane: take a slot, or give it back, without the lock.

This is the rule, to be read; why it is safe beside those who have the lock is explained in
`slotwise._ledger.ledger`. Where a call would cost too much, the rule is inlined:

    take    `MemorySemaphore.__aenter__` and ``__enter__``,
            `MemoryAcquisition.__aenter__` and ``take``, `TimedMemoryAcquisition.__aenter__`,
            `QuickAdaptiveMemoryAcquisition.__aenter__`
    give    `MemorySemaphore.__aexit__` and ``__exit__``,
            `MemoryAcquisition.__aexit__` and ``give``, `TimedMemoryAcquisition.__aexit__`,
            `QuickAdaptiveMemoryAcquisition.__aexit__`

Each copy says so, and ``tests/memory/test_quick_lane_copies.py`` compares it with the rule: the
same checks in the same order, and the same outcome in every state of a tracker.

CPython runs signal handlers after calls, and any of them may raise: then a number that was just
popped is stored nowhere. `undo_take` searches for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._wait.clock import glance
from slotwise.memory._log import logged

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryClaim
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
        try:
            heappush(tracker.free, number)
        finally:  # even if a signal handler raises
            if tracker.line or tracker.attention:
                tracker.look_after_waiters()


def undo_take(tracker: Tracker, number: int, numbers_of_blocks: Iterable[int]) -> None:
    """Give back what a call had in hand when a signal handler raised.

    ``number`` is 0 if the call doesn't know it: it has just been popped. Then it is neither free
    nor held. If it is the only such number, it is found; if there are others, of another thread or
    of another instance's blocks, they can't be told apart, and it is lost.
    """
    if not number:
        in_hand = Snapshot(tracker).numbers_without_claim()
        in_hand.difference_update(numbers_of_blocks)
        if len(in_hand) == 1:
            number = in_hand.pop()
    if number:
        tracker.hand_over(number)


class Snapshot:
    """The slots of a tracker at one instant: copied quickly, to be looked at later."""

    __slots__ = ("_free", "_holders", "_reserve", "_top", "_tracker")

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._holders = list(tracker.holders.values())
        self._free = list(tracker.free)
        self._reserve = list(tracker.reserve)
        self._top = tracker.top

    def claims(self) -> list[MemoryClaim]:
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
