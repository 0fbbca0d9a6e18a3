"""Describe a deadlock: which task waits for what, and who holds it.

This only reads: the caller has decided that it is a deadlock, and ends the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slotwise.effects._errors import DeadlockError
from slotwise.effects._permits import leaks_of, place_of
from slotwise.effects._semaphores import Semaphore
from slotwise.effects._tasks import Future, Task

if TYPE_CHECKING:
    from slotwise.effects._scheduler import Scheduler

# Longer lists would make the message unreadable.
_SHOWN = 20


def diagnose(scheduler: Scheduler) -> DeadlockError:
    """Describe the tasks, all of which are stuck."""
    waiters: dict[Task[Any], object] = {}
    for task in scheduler.live:
        if task._blocker is not None:
            waiters[task] = task._blocker._awaited()
    wanted = dict.fromkeys(w for w in waiters.values() if isinstance(w, Semaphore))
    holders = _holders(scheduler, wanted)
    leaked = tuple(leak for semaphore in wanted for leak in leaks_of(semaphore))
    needs = {task: _needed(what, holders) for task, what in waiters.items()}
    cycles = tuple(find_cycles(needs))

    lines = ["nothing can ever run again"]
    lines += _listed([_describe_waiter(scheduler, *item, holders) for item in waiters.items()])
    lines += _listed([f"  cycle: {_describe_cycle(cycle, waiters)}" for cycle in cycles])
    lines += _listed([f"  left behind by a task that has ended: {leak}" for leak in leaked])
    return DeadlockError(
        "\n".join(lines), cycles=cycles, waiters=waiters, holders=holders, leaked=leaked
    )


def _holders(
    scheduler: Scheduler, wanted: Iterable[Semaphore]
) -> dict[Semaphore, tuple[Task[Any], ...]]:
    """Return the holders of each semaphore, in one pass over the tasks."""
    found: dict[Semaphore, list[Task[Any]]] = {semaphore: [] for semaphore in wanted}
    for task in scheduler.live:
        for semaphore in task._held or ():
            if semaphore in found:
                found[semaphore].append(task)
    return {semaphore: tuple(tasks) for semaphore, tasks in found.items()}


def find_cycles(needs: dict[Task[Any], list[Task[Any]]]) -> list[tuple[Task[Any], ...]]:
    """Return cycles in which each task needs the next; each task is gone through once."""
    cycles = []
    seen: set[Task[Any]] = set()
    for start in needs:
        path: dict[Task[Any], None] = {}
        choices = [iter([start])]  # of what each on the path needs
        while choices:
            task = next(choices[-1], None)
            if task is None:
                choices.pop()
                if path:
                    path.popitem()
            elif task in path:
                ring = [*path]
                cycles.append(tuple(ring[ring.index(task) :]))
            elif task in needs and task not in seen:
                seen.add(task)
                path[task] = None
                choices.append(iter(needs[task]))
    return cycles


def _needed(what: object, holders: dict[Semaphore, tuple[Task[Any], ...]]) -> list[Task[Any]]:
    """Return the tasks that would have to run first."""
    if isinstance(what, Semaphore):
        return [task for task in holders[what] if not task._done]
    targets: Iterable[object] = what if isinstance(what, tuple) else (what,)
    return [target for target in targets if isinstance(target, Task)]


def _describe_waiter(
    scheduler: Scheduler,
    task: Task[Any],
    what: object,
    holders: dict[Semaphore, tuple[Task[Any], ...]],
) -> str:
    filename, line = place_of(*scheduler.site_of(task))
    text = f"  {task.name!r} waits for {_describe(what)}"
    if isinstance(what, Semaphore):
        names = [repr(holder.name) for holder in holders[what] if not holder._done]
        by = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
        text += f", held by {by}" if by else ", held by no live task"
    return f"{text} (at {filename}:{line})"


def _describe(what: object) -> str:
    if isinstance(what, Semaphore):
        return f"semaphore {what.name!r}"
    if isinstance(what, tuple):
        shown = [_describe(item) for item in what[:_SHOWN]]
        return " and ".join([*shown, *(["..."] if len(what) > _SHOWN else [])])
    if isinstance(what, Future):
        return f"{'task' if isinstance(what, Task) else 'promise'} {getattr(what, 'name', '')!r}"
    return repr(what)


def _describe_cycle(cycle: tuple[Task[Any], ...], waiters: dict[Task[Any], object]) -> str:
    parts = []
    for task in cycle:
        parts.append(repr(task.name))
        what = waiters[task]
        if isinstance(what, Semaphore):
            parts.append(f"semaphore {what.name!r}")
    return " -> ".join([*parts, repr(cycle[0].name)])


def _listed(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"  ... and {more} more"] if more > 0 else lines
