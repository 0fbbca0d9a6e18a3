"""Record which task acquired each permit, until the permit is released.

Permits have numbers, which come from the ledger and go back to it. They can be released one by one,
be transferred, and outlive their task, so they are recorded here, by acquire, and not in the
ledger. Who may release them is decided in `_semaphore_effects`. Nothing here queues or wakes
anyone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from slotwise.effects._errors import LeakedPermits

if TYPE_CHECKING:
    from slotwise.effects._program import Steps
    from slotwise.effects._scheduler import Scheduler
    from slotwise.effects._semaphores import Semaphore
    from slotwise.effects._tasks import Task


@dataclass(slots=True, eq=False)
class HeldPermits:
    """The unreleased permits of one acquire, and where it was made.

    The place is kept as the generator and the instruction it had reached. The line is looked up
    only when somebody asks for it, which is rare.
    """

    task: Task[Any]
    numbers: list[int]
    steps: Steps[Any]
    instruction: int
    order: int  # the smaller, the older
    handed_on: int = 0  # how many of them were transferred to other tasks
    charged: int = 0  # how many of them other tasks have released
    charged_by: Task[Any] | None = None  # the last of those


# Acquires with permits left, oldest first. Taking the first entry of a plain dict again and again
# is slow: it skips over every entry that was removed before.
Holdings = OrderedDict[HeldPermits, None]


def place_of(steps: Steps[Any], instruction: int) -> tuple[str, int]:
    """Return the file and line of an instruction of a generator."""
    code: CodeType = steps.gi_code  # type: ignore[attr-defined]
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return code.co_filename, line
    return code.co_filename, code.co_firstlineno


def file(
    semaphore: Semaphore,
    task: Task[Any],
    numbers: list[int],
    steps: Steps[Any],
    instruction: int,
) -> HeldPermits:
    """Record an acquire."""
    holding = HeldPermits(task, numbers, steps, instruction, semaphore._scheduler.next_order())
    holdings_of(task, semaphore).append(holding)
    if semaphore._outstanding is not None:
        semaphore._outstanding[holding] = None
    return holding


def holdings_of(task: Task[Any], semaphore: Semaphore) -> list[HeldPermits]:
    """Return the task's own list of its acquires of a semaphore, oldest first."""
    if task._held is None:
        task._held = {}
    holdings = task._held.get(semaphore)
    if holdings is None:
        holdings = task._held[semaphore] = []
    return holdings


def held_by(task: Task[Any], semaphore: Semaphore) -> int:
    """Return how many permits of a semaphore a task holds."""
    return count((task._held or {}).get(semaphore, ()))


def count(holdings: Iterable[HeldPermits]) -> int:
    return sum(len(holding.numbers) for holding in holdings)


def outstanding_of(semaphore: Semaphore) -> Holdings:
    """Return all acquires with unreleased permits, oldest first.

    Only a task that releases what others acquired needs to know which is the oldest. So the list is
    made when that first happens, and kept up to date from then on.
    """
    if semaphore._outstanding is None:
        found = list(semaphore._left)
        for task in semaphore._scheduler.live:
            found += (task._held or {}).get(semaphore, ())
        found.sort(key=lambda holding: holding.order)
        semaphore._outstanding = OrderedDict.fromkeys(found)
    return semaphore._outstanding


def forget(semaphore: Semaphore, holding: HeldPermits) -> None:
    """Remove an acquire whose permits have all been released."""
    if semaphore._outstanding is not None:
        del semaphore._outstanding[holding]
    if holding in semaphore._left:
        del semaphore._left[holding]
        if not semaphore._left:
            del semaphore._scheduler.left_behind[semaphore]
        return
    held = holding.task._held
    assert held is not None
    holdings = held[semaphore]
    if holdings[-1] is holding:
        holdings.pop()  # brackets nest: there may be thousands before it
    else:
        holdings.remove(holding)
    if not holdings:
        del held[semaphore]


def take_latest(task: Task[Any], semaphore: Semaphore, n: int) -> list[int]:
    """Take ``n`` permit numbers from a task's latest acquires."""
    if not n:
        return []
    holdings = holdings_of(task, semaphore)
    numbers: list[int] = []
    while n:
        holding = holdings[-1]
        taken = holding.numbers[-n:]
        del holding.numbers[-n:]
        numbers += taken
        n -= len(taken)
        if not holding.numbers:
            forget(semaphore, holding)
    return numbers


def take_oldest(
    semaphore: Semaphore, holdings: Holdings, n: int, charged_by: Task[Any]
) -> list[int]:
    """Take ``n`` permit numbers from the oldest acquires."""
    numbers: list[int] = []
    while n:
        holding = next(iter(holdings))
        taken = holding.numbers[:n]
        del holding.numbers[:n]
        holding.charged += len(taken)
        holding.charged_by = charged_by
        numbers += taken
        n -= len(taken)
        if not holding.numbers:
            forget(semaphore, holding)
    return numbers


def take_unseen(task: Task[Any], semaphore: Semaphore, n: int) -> list[int]:
    """Take the permit numbers of a grant that its task never saw."""
    numbers = take_latest(task, semaphore, min(n, held_by(task, semaphore)))
    missing = min(n - len(numbers), semaphore._node.in_use - len(numbers))
    if missing > 0:
        # Releases by other tasks were charged to this acquire, which now never happened, so they
        # are charged to the next oldest.
        numbers += take_oldest(semaphore, outstanding_of(semaphore), missing, task)
    return numbers


def hand_on(semaphore: Semaphore, releaser: Task[Any], receiver: Task[Any], n: int) -> None:
    """Transfer ``n`` permits to another task; where they were acquired stays recorded."""
    own, theirs = holdings_of(releaser, semaphore), holdings_of(receiver, semaphore)
    while n:
        holding = own[-1]
        moved = holding.numbers[-n:]
        del holding.numbers[-n:]
        holding.handed_on += len(moved)
        n -= len(moved)
        theirs.append(
            HeldPermits(receiver, moved, holding.steps, holding.instruction, holding.order)
        )
        if not holding.numbers:
            forget(semaphore, holding)
    # What was transferred keeps its age, so the list is made anew to have it in its place.
    semaphore._outstanding = None


def abandon(scheduler: Scheduler, task: Task[Any]) -> None:
    """After a task has ended: let any task release what it still holds."""
    for semaphore, holdings in (task._held or {}).items():
        semaphore._left.update(OrderedDict.fromkeys(holdings))
        scheduler.left_behind[semaphore] = None
    task._held = None


def holders_of(scheduler: Scheduler, semaphore: Semaphore) -> tuple[Task[Any], ...]:
    """Return the tasks that hold permits, each once; ended ones first."""
    tasks = dict.fromkeys(holding.task for holding in semaphore._left)
    missing = semaphore._node.in_use - count(semaphore._left)
    for task in scheduler.live:
        if not missing:
            break
        held = held_by(task, semaphore)
        if held:
            missing -= held
            tasks[task] = None
    return tuple(tasks)


def leaks_of(semaphore: Semaphore) -> list[LeakedPermits]:
    """Return the permits that ended tasks did not release."""
    return [
        LeakedPermits(
            semaphore,
            holding.task,
            len(holding.numbers),
            *place_of(holding.steps, holding.instruction),
        )
        for holding in semaphore._left
    ]
