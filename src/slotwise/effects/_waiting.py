"""Waiting for tasks and promises: one of them, all of them, the first of them.

The scheduler decides when a task ends and what runs next; this module tells the tasks
that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slotwise._core.redaction import redacted_repr
from slotwise.effects._effects import (
    CompletePromise,
    CreatePromise,
    Effect,
    FailPromise,
    Gather,
    Race,
    Wait,
    use,
)
from slotwise.effects._program import Program
from slotwise.effects._tasks import Future, Promise, Task

if TYPE_CHECKING:
    from slotwise.effects._scheduler import Scheduler, TaskParked


def wait(scheduler: Scheduler, task: Task[Any], effect: Wait[Any]) -> object:
    target = effect.target
    if not isinstance(target, Future):
        raise TypeError(f"Wait takes a task or a promise, not {redacted_repr(target)}")
    if target._scheduler is not scheduler:
        scheduler.check_ours(target)
    if target._done:
        return answer(target)
    if task._pending is not None:
        scheduler.raise_pending(task)
    if target._observers is None:
        target._observers = {task: None}
    else:
        target._observers[task] = None
    task._blocker = target
    task._parked = True
    return scheduler.parked


def answer(target: Future[Any]) -> object:
    """Return the value of an ended task or promise, or raise its error."""
    if target._error is None:
        return target._value
    target._retrievals += 1
    raise target._error_to_raise()


def observe(target: Future[Any], observer: Any) -> None:
    if target._observers is None:
        target._observers = {}
    target._observers[observer] = None


class MultiWait:
    """A task that waits for several at once."""

    __slots__ = ("offspring", "scheduler", "seen", "targets", "task")

    def __init__(
        self, scheduler: Scheduler, task: Task[Any], given: tuple[object, ...], wanted_by: str
    ) -> None:
        self.scheduler = scheduler
        self.task = task
        self.seen: Future[Any] | None = None  # whose error or value the task was woken with
        self.targets: list[Future[Any]] = []
        # Nobody else has a handle to these, so they end with the task that waits.
        self.offspring: list[Task[Any]] = []
        for item in given:
            use(item)
        for item in given:
            self._check(item, wanted_by)
        for item in given:
            if isinstance(item, Wait):
                item = item.target
            if isinstance(item, Future):
                self.targets.append(item)
            else:
                child: Task[Any] = scheduler.spawn(scheduler.program_of(task, item, wanted_by))
                self.offspring.append(child)
                self.targets.append(child)

    def _check(self, item: object, wanted_by: str) -> None:
        """Check before anything is spawned: a bad argument changes nothing."""
        if isinstance(item, Wait):
            item = item.target
            if not isinstance(item, Future):
                raise TypeError(f"Wait takes a task or a promise, not {redacted_repr(item)}")
        if isinstance(item, Future):
            self.scheduler.check_ours(item)
        elif not isinstance(item, Program | Effect):
            raise TypeError(
                f"{wanted_by} takes tasks, promises and programs, not {redacted_repr(item)}"
            )

    def ended(self, target: Future[Any]) -> None:
        raise NotImplementedError

    def watch(self) -> None:
        for target in self.targets:
            if not target._done:
                observe(target, self)

    def leave(self) -> None:
        for target in self.targets:
            if target._observers is not None:
                target._observers.pop(self, None)

    def first_ended(self) -> Future[Any] | None:
        ended = [target for target in self.targets if target._done]
        return min(ended, key=lambda target: target._end_order, default=None)

    def hand_over(self, target: Future[Any]) -> None:
        self.leave()
        self.seen = target
        self.scheduler.hand_over(target, self.task)

    # As a Blocker:

    def _withdraw(self, _task: Task[Any]) -> None:
        self.leave()
        if self.seen is not None and self.seen._error is not None:
            self.seen._retrievals -= 1
        self.scheduler.orphans += self.offspring

    def _awaited(self) -> object:
        return tuple(target for target in self.targets if not target._done)


class Gathering(MultiWait):
    """Waits for all of them, or for the first failure."""

    __slots__ = ("missing",)

    def begin(self) -> list[Any] | TaskParked:
        failed = [target for target in self.targets if target._done and target._error is not None]
        if failed:
            answer(min(failed, key=lambda target: target._end_order))
        self.missing = len({target for target in self.targets if not target._done})
        if not self.missing:
            return [target._value for target in self.targets]
        self.watch()
        return self.scheduler.park(self.task, self)

    def ended(self, target: Future[Any]) -> None:
        if target._error is not None:
            self.hand_over(target)
            return
        self.missing -= 1
        if not self.missing:
            self.scheduler.wake(self.task, [target._value for target in self.targets])


class Racing(MultiWait):
    """Waits for the first of them, and until the others have ended too."""

    __slots__ = ("losers", "winner")

    def begin(self) -> object:
        self.winner = self.first_ended()
        self.losers: set[Future[Any]] = set()
        if self.winner is not None and not self._stop_losers():
            return answer(self.winner)
        self.watch()
        return self.scheduler.park(self.task, self)

    def ended(self, target: Future[Any]) -> None:
        if self.winner is None:
            self.winner = target
            if not self._stop_losers():
                self.hand_over(target)
            return
        self.losers.discard(target)
        if not self.losers:
            self.hand_over(self.winner)

    def _stop_losers(self) -> bool:
        """Cancel all but the winner; return False if none of them is still running."""
        # Promises have nothing to stop.
        losers = [t for t in self.targets if isinstance(t, Task) and not t._done]
        self.losers.update(losers)
        for task in losers:
            self.scheduler.cancel(task)
        return bool(self.losers)


def gather(scheduler: Scheduler, task: Task[Any], effect: Gather[Any]) -> object:
    scheduler.raise_pending(task)
    return Gathering(scheduler, task, effect.targets, "Gather").begin()


def race(scheduler: Scheduler, task: Task[Any], effect: Race[Any]) -> object:
    if not effect.targets:
        raise ValueError("Race needs at least one task, promise or program")
    scheduler.raise_pending(task)
    return Racing(scheduler, task, effect.targets, "Race").begin()


# -------------------------------------------------------------------- promises


def create_promise(
    scheduler: Scheduler, _task: Task[Any], effect: CreatePromise[Any]
) -> Promise[Any]:
    scheduler.promises += 1
    return Promise(scheduler, effect.name or f"promise-{scheduler.promises}")


def complete_promise(scheduler: Scheduler, _task: Task[Any], effect: CompletePromise) -> None:
    promise = _open_promise(scheduler, effect.promise)
    scheduler.end(promise, effect.value, None)


def fail_promise(scheduler: Scheduler, _task: Task[Any], effect: FailPromise) -> None:
    promise = _open_promise(scheduler, effect.promise)
    error = effect.error
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    if not isinstance(error, BaseException):
        raise TypeError(f"FailPromise takes an exception, not {redacted_repr(error)}")
    scheduler.end(promise, None, error)


def _open_promise(scheduler: Scheduler, given: object) -> Promise[Any]:
    if not isinstance(given, Promise):
        raise TypeError(f"expected a promise made by CreatePromise, not {redacted_repr(given)}")
    scheduler.check_ours(given)
    if given._done:
        raise RuntimeError(f"promise {given.name!r} is already completed")
    return given


EFFECTS: dict[type, Callable[..., Any]] = {
    Wait: wait,
    Gather: gather,
    Race: race,
    CreatePromise: create_promise,
    CompletePromise: complete_promise,
    FailPromise: fail_promise,
}
