"""Answer the effects that concern neither semaphores nor waiting.

Importing it completes the scheduler's table of effects.
"""

from __future__ import annotations

import math
from inspect import iscoroutine
from typing import Any

from slotwise._core.arguments import check_name, check_required_seconds
from slotwise._core.redaction import redacted_repr
from slotwise.effects import _semaphore_effects, _waiting
from slotwise.effects._effects import (
    Await,
    Cancel,
    Checkpoint,
    Now,
    Outcome,
    Sleep,
    Spawn,
    Try,
    WithPermit,
)
from slotwise.effects._errors import TaskCancelledError
from slotwise.effects._permits import HeldPermits
from slotwise.effects._program import Steps
from slotwise.effects._scheduler import BUILTIN, ENTERED, PARKED, Scheduler, TaskParked
from slotwise.effects._semaphore_effects import AcquireHere, ReleaseHolding
from slotwise.effects._semaphores import Semaphore
from slotwise.effects._tasks import Task


def spawn(scheduler: Scheduler, task: Task[Any], effect: Spawn[Any]) -> Task[Any]:
    name = effect.name
    if name is not None:
        check_name(name)
    return scheduler.spawn(scheduler.program_of(task, effect.program, "Spawn"), name)


def cancel(scheduler: Scheduler, task: Task[Any], effect: Cancel) -> None:
    if not isinstance(effect.task, Task):
        raise TypeError(f"Cancel takes a task, not {redacted_repr(effect.task)}")
    scheduler.check_ours(effect.task)
    scheduler.cancel(effect.task)
    if effect.task is task:
        scheduler.raise_pending(task)


def checkpoint(scheduler: Scheduler, task: Task[Any], _effect: Checkpoint) -> TaskParked:
    scheduler.raise_pending(task)
    scheduler.ready.append(task)
    return PARKED


def sleep(scheduler: Scheduler, task: Task[Any], effect: Sleep) -> TaskParked:
    seconds = check_required_seconds("seconds", effect.seconds, zero=True, most=math.inf)
    scheduler.raise_pending(task)
    if seconds == 0:
        scheduler.ready.append(task)
        return PARKED
    scheduler.timers.set(task, scheduler.now() + seconds)
    return scheduler.park(task, None)


def now(scheduler: Scheduler, _task: Task[Any], _effect: Now) -> float:
    return scheduler.now()


def await_(scheduler: Scheduler, task: Task[Any], effect: Await[Any]) -> TaskParked:
    if scheduler.bridge is None or task._pending is not None:
        if iscoroutine(effect.awaitable):
            effect.awaitable.close()  # nobody will ever await it
        scheduler.raise_pending(task)
        raise RuntimeError("Await needs an event loop: use run_async(), not run()")
    return scheduler.park(task, scheduler.bridge(task, effect.awaitable))


def try_(scheduler: Scheduler, task: Task[Any], effect: Try[Any]) -> object:
    return scheduler.enter(task, _tried(task, scheduler.sited(task, effect.program)))


def _tried(task: Task[Any], program: object) -> Steps[Outcome[Any]]:
    try:
        return Outcome((yield program))
    except Exception as error:
        return Outcome(error=error)
    except TaskCancelledError as error:
        if error.task is task:
            raise
        return Outcome(error=error)


def with_permit(scheduler: Scheduler, task: Task[Any], effect: WithPermit[Any]) -> object:
    acquire = AcquireHere(effect.semaphore, effect.n, None, scheduler.site_of(task))
    acquire.bracket = True
    program = scheduler.sited(task, effect.program)
    holding = _semaphore_effects.acquire(scheduler, task, acquire)
    # All in one step: once the permits are taken or queued for, the generator that releases them
    # exists. If it is cancelled before the program begins, the next waiter gets them.
    bracket = _bracket(effect.semaphore, effect.n, program)
    next(bracket)
    scheduler.enter(task, bracket)
    if holding is PARKED:
        return PARKED
    task._inbox = holding
    return ENTERED


def _bracket(semaphore: Semaphore, n: int, program: object) -> Steps[Any]:
    holding: HeldPermits = yield
    failure: BaseException | None = None
    try:
        return (yield program)
    except BaseException as error:
        failure = error
        raise
    finally:
        try:
            yield ReleaseHolding(semaphore, n, holding)
        except RuntimeError as misuse:
            if failure is None:
                raise
            # The program's own error takes precedence: a cancellation stays a cancellation.
            failure.add_note(str(misuse))
        finally:
            del failure  # no cycle with its own traceback


BUILTIN.update(_semaphore_effects.EFFECTS)
BUILTIN.update(_waiting.EFFECTS)
BUILTIN.update(
    {
        Spawn: spawn,
        Cancel: cancel,
        Checkpoint: checkpoint,
        Sleep: sleep,
        Now: now,
        Await: await_,
        Try: try_,
        WithPermit: with_permit,
    }
)
