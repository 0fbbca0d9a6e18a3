"""A small priority queue of items that were pulled ahead of their start."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from slotwise.pipeline._work_item import WorkItem


class Lookahead:
    """A few items, pulled in advance; equal priorities keep the source's order."""

    def __init__(self, priority: Callable[[Any], Any]) -> None:
        self._priority = priority
        self._heap: list[tuple[_Reversed, int, WorkItem]] = []
        self._tickets = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, work: WorkItem) -> None:
        """Add an item; if its priority raises, or can't be compared, raise that and add nothing."""
        rank = _Reversed(self._priority(work.item))
        if self._heap:
            rank < self._heap[0][0]  # noqa: B015  # raises here, not inside the heap
        # heapq pops the smallest; we want the highest priority.
        heapq.heappush(self._heap, (rank, next(self._tickets), work))

    def best(self) -> WorkItem:
        return heapq.heappop(self._heap)[2]

    def clear(self) -> None:
        self._heap.clear()


class _Reversed:
    """Reverses the order of priorities, whatever their type."""

    __slots__ = ("rank",)

    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.rank < self.rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.rank == other.rank)

    __hash__ = None  # type: ignore[assignment]
