"""Find tasks that can never run again while others still can.

What a task waits for may come from outside (an awaitable, a timer) or from any
task (a promise, a permit that anybody may release): then it can go on. Otherwise
it needs certain tasks, and can go on if one of them can. The rest are stuck. The interpreter
decides what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slotwise.effects._semaphores import Semaphore
from slotwise.effects._tasks import Task
from slotwise.effects._waiting import MultiWait, Racing

if TYPE_CHECKING:
    from slotwise.effects._scheduler import Scheduler


def find_stuck(scheduler: Scheduler) -> list[Task[Any]]:
    """Return the tasks that only other stuck tasks could wake, in spawn order."""
    search = _Search(scheduler)
    search.spread()
    return [task for task in scheduler.live if task not in search.able]


class _Search:
    """Spreads from the tasks that can go on to those that they can wake."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.able: set[Task[Any]] = set()  # those that can go on
        self.cancelled: set[Task[Any]] = set()  # and those that somebody can cancel
        self.to_do: list[Task[Any]] = []
        self.waiting_for: dict[Task[Any], list[Task[Any]]] = {}
        self.queues: dict[Semaphore, list[Task[Any]]] = {}
        for task in scheduler.live:
            self._file(task)

    def _file(self, task: Task[Any]) -> None:
        blocker = task._blocker
        what = blocker._awaited() if task._parked and blocker is not None else None
        if isinstance(what, Semaphore) and what.owned and not what._left and task._timer is None:
            self.queues.setdefault(what, []).append(task)
            return
        targets = what if isinstance(what, tuple) else (what,)
        if not all(isinstance(target, Task) for target in targets):
            self._can_go_on(task)
            return
        for target in targets:
            self.waiting_for.setdefault(target, []).append(task)

    def _can_go_on(self, task: Task[Any]) -> None:
        if task not in self.able:
            self.able.add(task)
            self.to_do.append(task)

    def spread(self) -> None:
        while self.to_do:
            task = self.to_do.pop()
            for waiter in self.waiting_for.pop(task, ()):
                self._can_go_on(waiter)
            if self.queues:
                for semaphore in _semaphores_of(task):
                    for waiter in self.queues.pop(semaphore, ()):
                        self._can_go_on(waiter)
            if isinstance(task._blocker, Racing):
                self._cancel(task._blocker.targets)

    def _cancel(self, targets: list[Any]) -> None:
        """Note that a race cancels its losers, and these the tasks that were spawned for them."""
        to_do = list(targets)
        while to_do:
            target = to_do.pop()
            if not isinstance(target, Task) or target._done or target in self.cancelled:
                continue
            self.cancelled.add(target)
            self._can_go_on(target)
            if isinstance(target._blocker, MultiWait):
                to_do += target._blocker.offspring


def _semaphores_of(task: Task[Any]) -> list[Semaphore]:
    """Return the semaphores a task holds, and the one it queues for: it may leave the queue."""
    found = list(task._held or ())
    if task._permit is not None:
        found.append(task._permit[0])
    if task._parked and task._blocker is not None:
        what = task._blocker._awaited()
        if isinstance(what, Semaphore):
            found.append(what)
    return found
