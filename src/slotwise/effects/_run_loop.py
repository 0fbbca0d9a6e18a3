"""Drive a run from the root's first step to the end of its last task.

It is the same for all interpreters. They differ in what they do when nothing is ready:
`drive` is an iterator that stops there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slotwise.effects import _handlers as _handlers
from slotwise.effects._deadlock import diagnose
from slotwise.effects._program import Program
from slotwise.effects._reports import collect, issue
from slotwise.effects._scheduler import Scheduler

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
