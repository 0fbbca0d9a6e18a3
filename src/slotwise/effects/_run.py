"""run: the deterministic interpreter, on virtual time.

It chooses the order of tasks (round-robin, or drawn from a seed) and counts their steps.
The scheduler performs the effects. How a run goes from its first step to its end, and what it warns
of, is the same for all interpreters, and stands here too.
"""

from __future__ import annotations

import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from slotwise._core.arguments import check_count
from slotwise._core.redaction import redacted_repr
from slotwise.effects import _handlers as _handlers
from slotwise.effects._custom import Handler
from slotwise.effects._deadlock import diagnose
from slotwise.effects._effects import Effect
from slotwise.effects._errors import PermitLeakWarning, StepLimitExceeded, UnretrievedTaskError
from slotwise.effects._permits import leaks_of
from slotwise.effects._program import Program, as_program
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


# How often tasks that are stuck in a `finally` are cancelled again before their generators are
# closed.
_LAST_CALLS = 10


def drive(scheduler: Scheduler, program: Program[Any]) -> Iterator[None]:
    """Run a program and all its tasks; yield whenever nothing is ready.

    The interpreter then lets time pass or other work run, and wakes tasks. When the iterator ends,
    every task has ended.
    """
    try:
        scheduler.root = scheduler.spawn(program)
        yield from _until_the_root_ends(scheduler)
        if scheduler.before_unwinding is not None:
            scheduler.before_unwinding()
        for task in list(scheduler.live):
            scheduler.cancel(task)
        yield from _until_all_have_ended(scheduler)
    finally:
        # Something is left only if the scheduler itself was interrupted.
        scheduler.close_all()


def _until_the_root_ends(scheduler: Scheduler) -> Iterator[None]:
    while not scheduler.stopping():
        scheduler.drain()
        if scheduler.stopping():
            return
        if not scheduler.may_go_on():
            scheduler.abort = diagnose(scheduler)
            return
        yield


def _until_all_have_ended(scheduler: Scheduler) -> Iterator[None]:
    last_calls = 0
    while scheduler.live:
        scheduler.drain()
        if not scheduler.live:
            return
        if scheduler.may_go_on():
            yield
            continue
        # Some `finally` waits for what can never happen.
        if scheduler.abort is None:
            root_error = failure_of(scheduler)
            scheduler.abort = diagnose(scheduler)
            scheduler.abort.__context__ = root_error
        last_calls += 1
        if last_calls > _LAST_CALLS:
            scheduler.close_all()
        for task in list(scheduler.live):
            scheduler.cancel(task, again=True)


def complete(scheduler: Scheduler, program: Program[Any]) -> None:
    """Drive a run on virtual time."""
    for _ in drive(scheduler, program):
        scheduler.advance()


def failure_of(scheduler: Scheduler) -> BaseException | None:
    """Return why a run was stopped or what its root raised; None if it succeeded."""
    if scheduler.abort is not None:
        return scheduler.abort
    return None if scheduler.root is None else scheduler.root._error


def conclude(scheduler: Scheduler) -> Any:
    """Report on a run that has ended; return the root's value or raise the run's error."""
    root = scheduler.root
    assert root is not None
    root._retrievals += 1
    error = failure_of(scheduler)
    issue(collect(scheduler), error)
    try:
        if error is not None:
            raise error
        return root._value
    finally:
        del error  # which has this frame in its traceback


@dataclass(frozen=True, slots=True)
class WarningReport:
    """One warning, with the line it is about."""

    category: type[Warning]
    message: str
    filename: str
    line: int


def collect(scheduler: Scheduler) -> list[WarningReport]:
    """Return the reports of a run whose tasks have all ended."""
    reports = []
    for semaphore in scheduler.left_behind:
        for leak in leaks_of(semaphore):
            message = f"never released: {leak}"
            reports.append(WarningReport(PermitLeakWarning, message, leak.filename, leak.line))
    for task in scheduler.failed:
        error = task._error
        if error is None or task._retrievals > 0 or error is scheduler.abort:
            continue
        frames = traceback.extract_tb(task._traceback)
        filename, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        message = (
            f"task {task.name!r} failed and nobody waited for it:"
            f" {type(error).__name__}: {error}{f' (at {filename}:{line})' if filename else ''}"
        )
        reports.append(WarningReport(UnretrievedTaskError, message, filename, line))
    return reports


def issue(reports: Iterable[WarningReport], error: BaseException | None = None) -> None:
    """Send the reports through `warnings`.

    Where a filter turns warnings into exceptions, all are issued before the
    first of those is raised; if there is an ``error`` that is going to be raised
    anyway, they become notes on it.
    """
    raised: Warning | None = None
    for report in reports:
        try:
            warnings.warn_explicit(report.message, report.category, report.filename, report.line)
        except report.category as warning:
            if error is not None:
                error.add_note(str(warning))
            elif raised is None:
                raised = warning
            else:
                raised.add_note(str(warning))
    if raised is not None:
        raise raised
