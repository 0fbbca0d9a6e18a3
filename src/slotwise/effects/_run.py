"""run: the deterministic interpreter, on virtual time.

It chooses the order of tasks (round-robin, or drawn from a seed) and counts their steps.
The scheduler performs the effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeVar

from slotwise._core.arguments import check_count
from slotwise._core.redaction import redacted_repr
from slotwise.effects._custom import Handler
from slotwise.effects._effects import Effect
from slotwise.effects._errors import StepLimitExceeded
from slotwise.effects._program import Program, as_program
from slotwise.effects._run_loop import complete, conclude
from slotwise.effects._scheduler import ENDED, Scheduler, StepObserver
from slotwise.effects._tasks import Task

T = TypeVar("T")

Trace = Callable[[int, Task[Any], Any], object]

# How many steps a run may still take to unwind after it has exceeded its limit.
_STEPS_TO_UNWIND = 10_000


def run(
    program: Program[T] | Effect[T],
    seed: str | bytes | float | None = None,
    trace: Trace | None = None,
    max_steps: int | None = None,
    handlers: Mapping[Any, Handler] | None = None,
) -> T:
    """Run a program and everything it spawns to the end, and return its value.

    The same program, with the same seed, runs the same way each time. Time is
    virtual: it advances only while every task waits, and waiting takes no real time.

    Args:
        program: what a ``@do`` function returned.
        seed: choose the next ready task pseudo-randomly; without a seed, tasks take turns.
        trace: called with the number of the step, the task and what it yields.
        max_steps: how many steps the program may take.
        handlers: custom effect classes, and the functions or ``@do`` functions
            that answer them.

    Raises:
        DeadlockError: nothing could ever run again.
        StepLimitExceeded: there were more steps than ``max_steps``.
    """
    root = as_program(program, "run")
    if max_steps is not None:
        check_count("max_steps", max_steps)
    if trace is not None and not callable(trace):
        raise TypeError(f"trace must be a callable(step, task, effect), not {redacted_repr(trace)}")
    watch = None if trace is None and max_steps is None else watcher(trace, max_steps)
    if seed is None:
        in_turn: deque[Task[Any]] = deque()
        scheduler = Scheduler(in_turn, in_turn.popleft, handlers, watch=watch)
    else:
        ready: list[Task[Any]] = []
        scheduler = Scheduler(ready, drawn(ready, seed), handlers, watch=watch)
    complete(scheduler, root)
    return conclude(scheduler)  # type: ignore[no-any-return]


def drawn(ready: list[Task[Any]], seed: Any) -> Callable[[], Task[Any]]:
    """Return a ``take`` that chooses pseudo-randomly from a seed."""
    random = Random(seed).random  # noqa: S311

    def take() -> Task[Any]:
        count = len(ready)
        if count < 2:
            return ready.pop()
        chosen = int(random() * count)
        # Order doesn't matter in a list that is drawn from, so swap and pop: constant time.
        ready[chosen], ready[-1] = ready[-1], ready[chosen]
        return ready.pop()

    return take


def watcher(trace: Trace | None, max_steps: int | None) -> StepObserver:
    """Count the steps: each time a task yields is one."""
    step = 0
    limit = max_steps

    def watch(task: Task[Any], effect: object) -> None:
        nonlocal step, limit
        if effect is ENDED:
            return
        step += 1
        if trace is not None:
            trace(step, task, effect)
        if limit is not None and step > limit:
            limit = step + _STEPS_TO_UNWIND
            raise StepLimitExceeded(
                f"more than {max_steps} steps: task {task.name!r} was about to perform {effect!r}"
            )

    return watch
