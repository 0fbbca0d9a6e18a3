"""The timers of a run's tasks, earliest first.

A task has one timer at most. A dropped one stays in the heap as a dead entry until it comes up or
dead entries are in the majority. The scheduler decides what happens when a timer is due.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotwise.effects._tasks import Task, Timer

# Fewer cancelled timers than this are not worth a clean-up.
_FEW = 64


class Timers:
    """The timers of all tasks of a run, earliest first."""

    __slots__ = ("_count", "_dead", "_heap")

    # Between any two calls:
    #   T1  a task's _timer is in the heap; an entry that is no task's _timer is dead
    #   T2  _dead entries of the heap are dead

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._count = 0  # breaks ties: first come, first served
        self._dead = 0

    def set(self, task: Task[Any], when: float) -> None:
        self._count += 1
        task._timer = timer = (when, self._count, task)
        heappush(self._heap, timer)

    def drop(self, task: Task[Any]) -> None:
        task._timer = None
        self._dead += 1
        if self._dead > _FEW + len(self._heap) // 2:
            self._heap = [timer for timer in self._heap if timer[2]._timer is timer]
            heapify(self._heap)
            self._dead = 0

    def earliest(self) -> float | None:
        """Return when the next timer is due; None if there is none."""
        heap = self._heap
        while heap and heap[0][2]._timer is not heap[0]:
            heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> Task[Any] | None:
        """Remove and return the task whose due timer is the earliest."""
        when = self.earliest()
        if when is None or when > now:
            return None
        task = heappop(self._heap)[2]
        task._timer = None
        return task
