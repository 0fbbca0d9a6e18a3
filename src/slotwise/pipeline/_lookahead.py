"""Items that were pulled ahead of their start: by priority, or by group for one worker each."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
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


# Idle groups are remembered too, so that their next items get the same worker again:
# at most this many per worker.
_IDLE_GROUPS = 16


class WorkerAssignments:
    """Groups and their workers, which are numbers here.

    A group keeps its worker while it has items under way, and after that as long as it is one of
    the latest idle groups. A new group gets the worker that has been idle longest or, if none is
    idle, the next of all in rotation.
    """

    def __init__(self, count: int) -> None:
        self._load = [0] * count
        self._free = dict.fromkeys(range(count))  # an ordered set: idle longest first
        self._in_rotation = itertools.cycle(range(count))
        self._busy: dict[Any, list[int]] = {}  # key -> [worker, items under way]
        self._idle: OrderedDict[Any, int] = OrderedDict()
        self._most_idle = _IDLE_GROUPS * count

    def assign(self, key: Any) -> int:
        """Return the worker for one more item of a group."""
        known = self._busy.get(key)
        if known is not None:
            known[1] += 1
            worker = known[0]
        else:
            remembered = self._idle.pop(key, None)
            worker = self._choose() if remembered is None else remembered
            self._busy[key] = [worker, 1]
        self._load[worker] += 1
        self._free.pop(worker, None)
        return worker

    def ended(self, key: Any, worker: int) -> None:
        """Note that an item of a group has ended."""
        known = self._busy[key]
        known[1] -= 1
        if not known[1]:
            del self._busy[key]
            self._idle[key] = worker
            if len(self._idle) > self._most_idle:
                self._idle.popitem(last=False)
        self._load[worker] -= 1
        if not self._load[worker]:
            self._free[worker] = None

    def _choose(self) -> int:
        return next(iter(self._free)) if self._free else next(self._in_rotation)
