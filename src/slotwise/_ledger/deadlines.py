"""Deadlines: find what expires next, earliest first.

A deadline lives in one of two places. New ones are put into ``young``, a plain
dict, because nearly every acquisition ends long before its deadline and a dict
entry is the cheapest thing to take back. Only when somebody asks for the
earliest are the young ones moved to a heap, each at most once in its life.
Entries of the heap are deleted lazily: ``_aged`` says which still count.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf

NEVER = inf


class Deadlines:
    """A set of keys, each with the time at which it is due.

    ``young[key] = when`` and ``young.pop(key, None)`` may be used directly, and
    without the lock that guards everything else here: see `PathLedger`.
    """

    __slots__ = ("_aged", "_heap", "young")

    # Between any two calls:
    #   D1  a key is in young or in _aged, never in both
    #   D2  every (key, when) of _aged has its entry in _heap
    #   D3  after `earliest` or `pop_due`, _heap is at most twice as long as _aged,
    #       and a little

    def __init__(self) -> None:
        self.young: dict[Hashable, float] = {}
        self._aged: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []

    def __len__(self) -> int:
        return len(self.young) + len(self._aged)

    def get(self, key: Hashable) -> float | None:
        when = self.young.get(key)
        return self._aged.get(key) if when is None else when

    def set(self, key: Hashable, when: float) -> None:
        """Give ``key`` a deadline, in place of one it may have."""
        self._aged.pop(key, None)
        self.young[key] = when

    def discard(self, key: Hashable) -> None:
        if self.young.pop(key, None) is None:
            self._aged.pop(key, None)

    def earliest(self) -> float:
        """The time of the next deadline; `NEVER` when there is none."""
        self._sort()
        return self._heap[0][0] if self._heap else NEVER

    def pop_due(self, now: float) -> list[Hashable]:
        """Take out every key whose deadline is ``now`` or earlier, oldest deadline first."""
        due = []
        while self.earliest() <= now:
            key = heappop(self._heap)[2]
            del self._aged[key]
            due.append(key)
        return due

    def _sort(self) -> None:
        """Move the young to the heap and drop dead entries from its top."""
        while self.young:
            try:
                key, when = self.young.popitem()
            except KeyError:  # the last one was taken back by a caller without the lock
                break
            self._aged[key] = when
            # id() breaks ties between keys that may not be comparable.
            heappush(self._heap, (when, id(key), key))
        if len(self._heap) > 2 * len(self._aged) + 64:
            self._heap = [(when, id(key), key) for key, when in self._aged.items()]
            heapify(self._heap)
        while self._heap and self._aged.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
