"""Scheduler: resume tasks, answer what they yield, and end them.

It is the same for every interpreter and has no policy. An interpreter provides the queue of ready
tasks and the choice among them (``ready`` and ``take``), the clock, and what to do while nothing is
ready (it iterates over `drive`). How semaphores and waiting behave is in their modules; the answers
to the other effects are in `_handlers`.

A task is an explicit stack of generators, driven by one loop: programs may nest
as deep as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence
from enum import Enum
from heapq import heappop
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from slotwise.effects._custom import NONE, Handler, answer_custom, installed
from slotwise.effects._effects import (
    AcquireSemaphore,
    use,
)
from slotwise.effects._errors import ForeignTaskError, TaskCancelledError
from slotwise.effects._permits import abandon, file
from slotwise.effects._program import Program, Steps, as_program
from slotwise.effects._semaphore_effects import AcquireHere
from slotwise.effects._semaphores import Semaphore, Ticket
from slotwise.effects._tasks import Future, Task, Timers
from slotwise.effects._tracebacks import innermost, is_handling, is_internal, trim

if TYPE_CHECKING:
    from slotwise.effects._tasks import Blocker

T = TypeVar("T")

StepObserver = Callable[[Task[Any], object], None]


class _Sign(Enum):
    PARKED = "the task waits: another one runs"
    ENTERED = "the task has a new innermost generator"
    ENDED = "what watchers are told when a task has ended"


PARKED: Final = _Sign.PARKED
ENTERED: Final = _Sign.ENTERED
ENDED: Final = _Sign.ENDED
TaskParked = Literal[_Sign.PARKED]

# Effect classes and the functions that answer them; filled by `_handlers`.
BUILTIN: dict[type, Handler] = {}


class Scheduler:
    """One run: its tasks, which of them is next, and how time passes."""

    # Between any two resumptions:
    #   R1  a live task is parked, or in `ready` exactly once
    #   R2  a parked task has a blocker or a timer, which can wake it

    parked: Final = PARKED

    def __init__(
        self,
        ready: MutableSequence[Task[Any]],
        take: Callable[[], Task[Any]],
        handlers: Mapping[Any, Handler] | None,
        *,
        watch: StepObserver | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Create a run without tasks.

        ``take`` removes a task from ``ready`` and returns it; IndexError ends
        `drain`. ``watch`` is called with every effect before it is answered,
        and with ENDED; what it raises stops the run. Without a ``clock`` the
        time is what `advance` makes it.
        """
        self.ready = ready
        self.take = take
        self.watch = watch
        self.clock = clock
        self.time = 0.0
        self.custom = installed(handlers, BUILTIN) if handlers else NONE
        self.root: Task[Any] | None = None
        self.current: Task[Any] | None = None
        self.live: dict[Task[Any], None] = {}
        self.failed: list[Task[Any]] = []
        self.left_behind: dict[Semaphore, None] = {}
        # Tasks spawned for a task that has been cancelled: they are cancelled next.
        self.orphans: list[Task[Any]] = []
        self.timers = Timers()
        self.bridge: Callable[[Task[Any], Any], Blocker] | None = None  # parks tasks on awaitables
        self.awaiting = 0  # how many tasks are parked on those
        self.abort: BaseException | None = None  # why the run is stopped early
        self.spawned = self.promises = self.unnamed_semaphores = self.tickets = self.ends = 0
        self.next_order = count().__next__  # tells which acquire is the older
        # For tools that show what happened:
        self.made_semaphores: list[Semaphore] | None = None
        self.before_unwinding: Callable[[], None] | None = None

    # ------------------------------------------------------------ running tasks

    def stopping(self) -> bool:
        """Whether the remaining tasks are to be cancelled."""
        return self.abort is not None or (self.root is not None and self.root._done)

    def drain(self) -> None:
        """Run tasks until ``take`` has none, the root has ended or the run is stopped."""
        take, watch, live = self.take, self.watch, self.live
        one = 1  # compared by identity: True is not a count
        builtin, parked = BUILTIN, PARKED
        while True:
            try:
                task = take()
            except IndexError:
                self.current = None
                return
            self.current = task
            steps = task._steps
            value = task._inbox
            error = task._thrown
            task._inbox = task._thrown = task._blocker = None
            while True:
                try:
                    if error is None:
                        effect = steps.send(value)
                    else:
                        thrown, error = error, None
                        try:
                            effect = steps.throw(thrown)
                        finally:
                            del thrown  # else it would live as long as this frame
                except StopIteration as stop:
                    value = stop.value
                    if task._stack:
                        steps = task._steps = task._stack.pop()
                        continue
                    if task._held or watch is not None or task is self.root:
                        if self._end_task(task, value, None):
                            return
                        break
                    del live[task]
                    task._steps = None
                    self.end(task, value, None)
                    break
                except BaseException as raised:
                    raised.__traceback__ = trim(raised.__traceback__)
                    if task._stack:
                        steps = task._steps = task._stack.pop()
                        error = raised
                        continue
                    if self._end_task(task, None, raised):
                        return
                    break

                if watch is not None:
                    try:
                        watch(task, effect)
                    except BaseException as raised:
                        use(effect)
                        self._interrupt(task, raised)
                        return

                kind = type(effect)
                # What is yielded is used; see `use`.
                if kind is AcquireSemaphore:
                    effect._used = True
                    semaphore = effect.semaphore
                    # The ledger's quick lane: nobody waits, so a number that is
                    # free may be taken.
                    if (
                        type(semaphore) is Semaphore
                        and semaphore._scheduler is self
                        and effect.n is one
                        and effect.timeout is None
                    ):
                        free = semaphore._node.free
                        if free and not semaphore._ledger.attention:
                            where = steps if steps.gi_yieldfrom is None else innermost(steps)
                            at = where.gi_frame.f_lasti
                            file(semaphore, task, [heappop(free)], where, at)
                            value = semaphore = None  # so as not to keep it alive
                            continue
                    semaphore = None
                elif kind is Program:
                    try:
                        inner = effect.function(*effect.args, **effect.kwargs)
                    except BaseException as raised:
                        raised.__traceback__ = trim(raised.__traceback__)
                        error = raised
                        continue
                    if task._stack is None:
                        task._stack = []
                    task._stack.append(steps)
                    steps = task._steps = inner
                    value = None
                    continue

                try:
                    handler = builtin.get(kind)
                    if handler is not None:
                        effect._used = True
                        value = handler(self, task, effect)
                    else:
                        value = answer_custom(self, task, effect, builtin)
                except BaseException as raised:
                    raised.__traceback__ = trim(raised.__traceback__)
                    error = raised
                    continue
                if value is parked:
                    break
                if value is ENTERED:
                    steps = task._steps
                    value = task._inbox  # nothing, unless it was started already
                    task._inbox = None

    def _end_task(self, task: Task[Any], value: Any, error: BaseException | None) -> bool:
        """Handle the end of a task; return True to stop here."""
        if task._held:
            abandon(self, task)
        del self.live[task]
        task._steps = None
        if error is not None and not isinstance(error, TaskCancelledError):
            self.failed.append(task)
            if isinstance(error, KeyboardInterrupt | SystemExit) and self.abort is None:
                self.abort = error
        self.end(task, value, error)
        if self.watch is not None:
            try:
                self.watch(task, ENDED)
            except BaseException as raised:
                self._interrupt(None, raised)
                return True
        if task is self.root or self.abort is error is not None:
            self.current = None
            return True
        return False

    def _interrupt(self, task: Task[Any] | None, why: BaseException) -> None:
        """Stop the run at the watcher's request; ``task`` stays at its yield."""
        self.current = None
        if task is not None:
            self.ready.append(task)
        if self.abort is None:
            self.abort = why
        else:
            self.close_all()

    def close_all(self) -> None:
        """End all tasks without running them again: the last resort."""
        for task in list(self.live):
            for steps in [task._steps, *reversed(task._stack or ())]:
                try:
                    steps.close()
                except BaseException:  # noqa: S110
                    pass  # the run already has an error that says why it came to this
            abandon(self, task)
            del self.live[task]
            task._steps = None
            self.end(task, None, TaskCancelledError(task))
        self.ready.clear()

    # --------------------------------------------------- the life of a task

    def spawn(self, program: Program[T], name: str | None = None) -> Task[T]:
        function = program.function
        steps = function(*program.args, **program.kwargs)
        task = Task(self, self.spawned, function, steps, name)
        self.spawned += 1
        self.live[task] = None
        self.ready.append(task)
        return task

    def park(self, task: Task[Any], blocker: Blocker | None) -> TaskParked:
        """Let a task wait; without a ``blocker`` it only waits for its timer."""
        task._blocker = blocker
        task._parked = True
        return PARKED

    def wake(self, task: Task[Any], value: object) -> None:
        """Make a parked task ready; its yield answers ``value``."""
        task._inbox = value
        task._parked = False
        if task._timer is not None:
            self.timers.drop(task)
        self.ready.append(task)

    def throw(self, task: Task[Any], error: BaseException) -> None:
        """Make a task's yield raise ``error``, whether it is parked or ready already."""
        task._inbox = None
        task._thrown = error
        if task._timer is not None:
            self.timers.drop(task)
        if task._parked:
            task._parked = False
            self.ready.append(task)

    def hand_over(self, target: Future[Any], task: Task[Any]) -> None:
        """Wake a task with the value or error of ``target``."""
        if target._error is None:
            self.wake(task, target._value)
        else:
            target._retrievals += 1
            self.throw(task, target._error_to_raise())

    def end(self, future: Future[Any], value: object, error: BaseException | None) -> None:
        future._value = value
        future._done = True
        self.ends += 1
        future._end_order = self.ends
        if error is not None:
            future._error = error
            future._traceback = error.__traceback__
        observers = future._observers
        if observers is not None:
            future._observers = None
            for observer in observers:
                observer.ended(future)

    # ---------------------------------------------------------- cancellation

    def cancel(self, task: Task[Any], *, again: bool = False) -> None:
        """Raise `TaskCancelledError` in a task, at its current ``yield``.

        One that is already unwinding is left alone, so that its ``finally`` can complete, unless
        ``again``. What was spawned for its `Gather` or `Race` is cancelled with it, and sees the
        cancellation first.
        """
        # Not recursive: these may be waiting in a `Gather` too, and so on.
        stopped: list[tuple[Task[Any], TaskCancelledError]] = []
        to_do = [task]
        while to_do:
            one = to_do.pop()
            error = self._withdraw(one, again and one is task)
            if error is not None:
                stopped.append((one, error))
            to_do += self.orphans
            self.orphans.clear()
        for one, error in reversed(stopped):
            self.throw(one, error)

    def _withdraw(self, task: Task[Any], again: bool) -> TaskCancelledError | None:
        """Withdraw a task from what it waits for; return the error to throw now, if any."""
        if task._done:
            return None
        if task._cancellation is not None and not again:
            on_its_way = task._thrown is task._cancellation or task._pending is not None
            if on_its_way or is_handling(task, task._cancellation):
                return None
        task._cancellation = error = TaskCancelledError(task)
        if task is self.current:
            # It has caused its own cancellation in the middle of an effect.
            task._pending = error
            return None
        blocker, task._blocker = task._blocker, None
        if blocker is not None:
            withdraw_later = getattr(blocker, "withdraw_later", None)
            if withdraw_later is not None:
                task._blocker = blocker
                task._pending = error
                withdraw_later()
                return None
            blocker._withdraw(task)
        return error

    def raise_pending(self, task: Task[Any]) -> None:
        """Raise a pending cancellation before a task parks."""
        error = task._pending
        if error is not None:
            task._pending = None
            raise error

    # ------------------------------------------------------------------ time

    def now(self) -> float:
        return self.time if self.clock is None else self.clock()

    def fire(self, now: float) -> None:
        """Wake tasks whose timers are due, earliest first."""
        while (task := self.timers.pop_due(now)) is not None:
            blocker = task._blocker
            if type(blocker) is Ticket:
                blocker.time_is_up()
            else:
                self.wake(task, None)

    def advance(self) -> None:
        """Advance virtual time to the next timer."""
        when = self.timers.earliest()
        if when is not None:
            self.time = when
            self.fire(when)

    def may_go_on(self) -> bool:
        """Whether anything is ready, or will be by itself."""
        return bool(self.ready or self.awaiting or self.timers.earliest() is not None)

    # ------------------------------------------------------- programs, effects

    def site_of(self, task: Task[Any]) -> tuple[Steps[Any], int]:
        """Return where the user's own program yielded."""
        steps: Any = task._steps
        if task._stack:
            for outer in reversed(task._stack):
                if not is_internal(steps.gi_code):
                    break
                steps = outer
        steps = innermost(steps)
        return steps, steps.gi_frame.f_lasti

    def program_of(self, task: Task[Any], given: object, wanted_by: str) -> Program[Any]:
        return as_program(self.sited(task, given), wanted_by)

    def sited(self, task: Task[Any], given: object) -> object:
        """Return an acquire that a generator of ours will yield, placed where the user yielded."""
        use(given)
        if type(given) is AcquireSemaphore:
            return AcquireHere(given.semaphore, given.n, given.timeout, self.site_of(task))
        return given

    def enter(self, task: Task[Any], steps: Steps[Any]) -> object:
        """Run a generator inside a task and answer its value."""
        if task._stack is None:
            task._stack = []
        task._stack.append(task._steps)
        task._steps = steps
        return ENTERED

    def check_ours(self, future: Future[Any]) -> None:
        if future._scheduler is not self:
            raise ForeignTaskError(
                f"{future!r} belongs to another run and can't be used in this one"
            )
