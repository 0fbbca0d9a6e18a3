"""Whose every permit is: filed with the task that owns it, until it is given back.

Permits are known by their numbers, which come from the ledger and go back to it.
They can be given back one by one, handed on, and outlive their task; so they are
filed here, by acquire, and not in the ledger. Nothing here queues or wakes anyone.
"""

from __future__ import annotations

from collections import deque
from types import CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

from slotwise.effects.errors import LeakedPermits

if TYPE_CHECKING:
    from slotwise.effects.program import Steps
    from slotwise.effects.scheduler import Scheduler
    from slotwise.effects.semaphores import Semaphore
    from slotwise.effects.tasks import Task


class Holding:
    """What is left of one acquire: the numbers of its permits, and where it was made.

    Where: the generator, and the instruction it had come to. Which line that is
    is looked up when somebody asks; of most acquires nobody ever does.
    """

    __slots__ = ("handed_on", "instruction", "numbers", "steps", "task")

    def __init__(
        self, task: Task[Any], numbers: list[int], steps: Steps[Any], instruction: int
    ) -> None:
        self.task = task
        self.numbers = numbers
        self.steps = steps
        self.instruction = instruction
        self.handed_on = 0  # how many of them were transferred to other tasks


def innermost(steps: Any) -> Any:
    """The generator that has yielded: ``yield from`` may be in between."""
    while isinstance(inner := steps.gi_yieldfrom, GeneratorType):
        steps = inner
    return steps


def place_of(steps: Steps[Any], instruction: int) -> tuple[str, int]:
    """The file and line of an instruction of a generator."""
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
) -> Holding:
    """Take note of an acquire."""
    holding = Holding(task, numbers, steps, instruction)
    if semaphore.owned:
        holdings_of(task, semaphore).append(holding)
    else:
        semaphore._loose.append(holding)
    return holding


def holdings_of(task: Task[Any], semaphore: Semaphore) -> list[Holding]:
    """A task's acquires of a semaphore, oldest first: the list itself, filed with the task."""
    if task._permit is not None:
        put_away(task)
    if task._held is None:
        task._held = {}
    holdings = task._held.get(semaphore)
    if holdings is None:
        holdings = task._held[semaphore] = []
    return holdings


def put_away(task: Task[Any]) -> None:
    """File the permit that a task took last with the others, to make room for the next."""
    assert task._permit is not None
    semaphore, number, steps, instruction = task._permit
    task._permit = None
    if task._held is None:
        task._held = {}
    task._held.setdefault(semaphore, []).append(Holding(task, [number], steps, instruction))


def held_by(task: Task[Any], semaphore: Semaphore) -> int:
    """How many permits of a semaphore a task has."""
    held = task._held
    filed = count(held[semaphore]) if held and semaphore in held else 0
    last = task._permit
    return filed + (last is not None and last[0] is semaphore)


def holds(task: Task[Any], semaphore: Semaphore, n: int) -> bool:
    """Whether a task has so many, without counting all it has."""
    last = task._permit
    if last is not None and last[0] is semaphore:
        n -= 1
    if n > 0 and task._held and semaphore in task._held:
        for holding in reversed(task._held[semaphore]):
            n -= len(holding.numbers)
            if n <= 0:
                break
    return n <= 0


def count(holdings: list[Holding] | deque[Holding]) -> int:
    return sum(len(holding.numbers) for holding in holdings)


def enough(holdings: deque[Holding], n: int) -> bool:
    """Whether there are ``n`` permits, without counting them all."""
    for holding in holdings:
        if n <= 0:
            break
        n -= len(holding.numbers)
    return n <= 0


def tidy(task: Task[Any], semaphore: Semaphore) -> None:
    """Forget acquires of which nothing is left."""
    holdings = [holding for holding in holdings_of(task, semaphore) if holding.numbers]
    assert task._held is not None
    if holdings:
        task._held[semaphore] = holdings
    else:
        del task._held[semaphore]


def take_latest(task: Task[Any], semaphore: Semaphore, n: int) -> list[int]:
    """The numbers of ``n`` of a task's permits, out of its latest acquires."""
    holdings = holdings_of(task, semaphore)
    numbers: list[int] = []
    while n:
        holding = holdings[-1]
        taken = holding.numbers[-n:]
        del holding.numbers[-n:]
        numbers += taken
        n -= len(taken)
        if not holding.numbers:
            holdings.pop()
    if not holdings:
        assert task._held is not None
        del task._held[semaphore]
    return numbers


def take_oldest(holdings: deque[Holding], n: int) -> list[int]:
    """The numbers of ``n`` permits, out of the oldest acquires."""
    numbers: list[int] = []
    while n:
        holding = holdings[0]
        taken = holding.numbers[:n]
        del holding.numbers[:n]
        numbers += taken
        n -= len(taken)
        if not holding.numbers:
            del holdings[0]
    return numbers


def take_unseen(task: Task[Any], semaphore: Semaphore, n: int) -> list[int]:
    """The numbers of the acquire that a task was just granted, and never saw."""
    if semaphore.owned:
        return take_latest(task, semaphore, min(n, held_by(task, semaphore)))
    loose = semaphore._loose
    numbers: list[int] = []
    for holding in reversed(loose):
        if holding.task is task:
            loose.remove(holding)
            numbers = holding.numbers
            break
    # Nobody's permits: the releases of others may have counted as the answer to
    # this acquire. Theirs are then what it has to give back.
    missing = min(n - len(numbers), count(loose))
    return numbers + take_oldest(loose, missing)


def hand_on(semaphore: Semaphore, giver: Task[Any], taker: Task[Any], n: int) -> None:
    """Make ``n`` of the giver's permits the taker's; where they were acquired stays known."""
    own, theirs = holdings_of(giver, semaphore), holdings_of(taker, semaphore)
    while n:
        holding = own[-1]
        moved = holding.numbers[-n:]
        del holding.numbers[-n:]
        holding.handed_on += len(moved)
        n -= len(moved)
        theirs.append(Holding(taker, moved, holding.steps, holding.instruction))
        if not holding.numbers:
            own.pop()
    tidy(giver, semaphore)


def abandon(scheduler: Scheduler, task: Task[Any]) -> None:
    """A task has ended: what it still holds is anybody's to release."""
    if task._permit is not None:
        put_away(task)
    for semaphore, holdings in (task._held or {}).items():
        semaphore._left.extend(holdings)
        scheduler.left_behind[semaphore] = None
    task._held = None


def holders_of(
    scheduler: Scheduler, semaphore: Semaphore, *, alive: bool = False
) -> tuple[Task[Any], ...]:
    """The tasks that have permits, each once; only those that have not ended, with ``alive``."""
    if not semaphore.owned:
        tasks = dict.fromkeys(holding.task for holding in semaphore._loose)
        return tuple(task for task in tasks if not (alive and task._done))
    tasks = {} if alive else dict.fromkeys(holding.task for holding in semaphore._left)
    missing = semaphore._ledger.in_use - count(semaphore._left)
    for task in scheduler.live:
        if not missing:
            break
        held = held_by(task, semaphore)
        if held:
            missing -= held
            tasks[task] = None
    return tuple(tasks)


def leaks_of(semaphore: Semaphore) -> list[LeakedPermits]:
    """The permits that ended tasks have left behind."""
    return [
        LeakedPermits(
            semaphore,
            holding.task,
            len(holding.numbers),
            *place_of(holding.steps, holding.instruction),
        )
        for holding in (semaphore._left if semaphore.owned else semaphore._loose)
        if holding.task._done
    ]
