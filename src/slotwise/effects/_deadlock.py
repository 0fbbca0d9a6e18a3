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


def diagnose(scheduler: Scheduler, stuck: Iterable[Task[Any]] | None = None) -> DeadlockError:
    """Describe the stuck tasks: all of them, unless some are given."""
    waiters: dict[Task[Any], object] = {}
    for task in scheduler.live if stuck is None else stuck:
        if task._blocker is not None:
            waiters[task] = task._blocker._awaited()
    wanted = dict.fromkeys(w for w in waiters.values() if isinstance(w, Semaphore))
    holders = _holders(scheduler, wanted)
    leaked = tuple(leak for semaphore in wanted for leak in leaks_of(semaphore))
    needs = {task: _needed(what, holders) for task, what in waiters.items()}
    cycles = tuple(find_cycles(needs))

    lines = [
        "nothing can ever run again"
        if stuck is None
        else f"{len(waiters)} of {len(scheduler.live)} tasks can never run again"
    ]
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
        held = dict.fromkeys(task._held or ())
        if task._permit is not None:
            held[task._permit[0]] = None
        for semaphore in held:
            if semaphore in found:
                found[semaphore].append(task)
    return {semaphore: tuple(tasks) for semaphore, tasks in found.items()}


def find_cycles(needs: dict[Task[Any], list[Task[Any]]]) -> list[tuple[Task[Any], ...]]:
    """Return cycles in which each task needs the next: one shortest cycle per component."""
    needs = _without_loose_ends(needs)
    cycles = []
    in_a_cycle: set[Task[Any]] = set()
    for start in needs:
        if start in in_a_cycle:
            continue
        # Breadth first, so the first path back to the start is a shortest one.
        came_from: dict[Task[Any], Task[Any]] = {}
        to_do = [start]
        for task in to_do:
            for needed in needs.get(task, ()):
                if needed not in came_from:
                    came_from[needed] = task
                    to_do.append(needed)
            if start in came_from:
                break
        if start not in came_from:
            continue
        ring = [start]
        while (before := came_from[ring[-1]]) is not start:
            ring.append(before)
        ring[1:] = reversed(ring[1:])
        in_a_cycle.update(ring)
        cycles.append(tuple(ring))
    return cycles


def _without_loose_ends(
    needs: dict[Task[Any], list[Task[Any]]],
) -> dict[Task[Any], list[Task[Any]]]:
    """Return only the tasks that can be part of a cycle."""
    needed_by: dict[Task[Any], list[Task[Any]]] = {task: [] for task in needs}
    for task, others in needs.items():
        for other in others:
            if other in needed_by:
                needed_by[other].append(task)
    rest = dict(needs)
    for onward, back in ((needs, needed_by), (needed_by, needs)):
        missing = {task: sum(other in rest for other in onward[task]) for task in rest}
        loose = [task for task, count in missing.items() if not count]
        for task in loose:
            del rest[task]
            for other in back[task]:
                if other in rest:
                    missing[other] -= 1
                    if not missing[other]:
                        loose.append(other)
    return {task: [other for other in others if other in rest] for task, others in rest.items()}


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
