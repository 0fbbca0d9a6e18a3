"""A small priority queue of items that were pulled ahead of their start."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from slotwise.pipeline._results import WorkItem


class Lookahead:
    """A few items, pulled in advance; equal priorities keep the source's order."""

    def __init__(self, priority: Callable[[Any], Any]) -> None:
        self._priority = priority
        self._heap: list[_Ranked] = []
        self._tickets = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, work: WorkItem) -> None:
        """Add an item; if its priority raises, or can't be compared, raise that and add nothing."""
        ranked = _Ranked(self._priority(work.item), next(self._tickets), work)
        if self._heap:
            ranked < self._heap[0]  # noqa: B015  # raises here, not inside the heap
        heapq.heappush(self._heap, ranked)

    def best(self) -> WorkItem:
        return heapq.heappop(self._heap).work

    def clear(self) -> None:
        self._heap.clear()


class _Ranked(NamedTuple):
    """Sorts higher priorities first, whatever their type."""

    rank: Any
    ticket: int
    work: WorkItem

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        rank, ticket, _ = other
        return bool(rank < self.rank or (not self.rank < rank and self.ticket < ticket))
