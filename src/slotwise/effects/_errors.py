"""The exceptions and warnings of the effects API.

Each is a SlotwiseError and also the builtin that fits. The one exception to that is
`TaskCancelledError`: ``except Exception`` must not swallow a cancellation. `AcquireTimeout` is
shared by all drivers, in `slotwise.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.effects._semaphores import Semaphore
    from slotwise.effects._tasks import Task


class TaskCancelledError(BaseException):
    """A task was cancelled: seen at its own ``yield``, and by whoever waits for it.

    ``task`` is the task that was cancelled.
    """

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(f"task {task.name!r} was cancelled")
        self.task = task


class ForeignSemaphoreError(SlotwiseError, RuntimeError):
    """A semaphore was used in a run other than the one that made it."""


class ForeignTaskError(SlotwiseError, RuntimeError):
    """A task or promise was used in a run other than the one that made it."""


class UnhandledEffectError(SlotwiseError, RuntimeError):
    """A custom effect without a handler was yielded."""


class StepLimitExceeded(SlotwiseError, RuntimeError):
    """The program took more steps than ``max_steps``."""


class InvariantViolated(SlotwiseError, AssertionError):
    """The invariant given to `explore` returned False."""


class ScheduleMismatch(SlotwiseError, RuntimeError):
    """A schedule was replayed with a program that it doesn't fit."""


class PermitLeakWarning(SlotwiseError, RuntimeWarning):
    """A task ended without releasing what it had acquired."""


class UnretrievedTaskError(SlotwiseError, RuntimeWarning):
    """A task failed and nobody waited for it."""


@dataclass(frozen=True, slots=True)
class LeakedPermits:
    """Permits of one acquire that a task had not released when it ended."""

    semaphore: Semaphore
    task: Task[Any]
    permits: int
    filename: str
    line: int

    def __str__(self) -> str:
        permits = "1 permit" if self.permits == 1 else f"{self.permits} permits"
        return (
            f"{permits} of {self.semaphore.name!r}, acquired by {self.task.name!r}"
            f" at {self.filename}:{self.line}"
        )


class DeadlockError(SlotwiseError, RuntimeError):
    """Some or all tasks can never run again.

    Attributes:
        cycles: rings of tasks, each of which waits for the next.
        waiters: every parked task, with the semaphore, task, promise or tuple of them it waits for.
        holders: every semaphore that is waited for, with the live tasks that hold its permits.
        leaked: the permits of those semaphores that ended tasks left behind.
    """

    def __init__(
        self,
        message: str,
        *,
        cycles: tuple[tuple[Task[Any], ...], ...] = (),
        waiters: Mapping[Task[Any], object] | None = None,
        holders: Mapping[Semaphore, tuple[Task[Any], ...]] | None = None,
        leaked: tuple[LeakedPermits, ...] = (),
    ) -> None:
        super().__init__(message)
        self.cycles = cycles
        self.waiters: dict[Task[Any], object] = dict(waiters or {})
        self.holders: dict[Semaphore, tuple[Task[Any], ...]] = dict(holders or {})
        self.leaked = leaked
