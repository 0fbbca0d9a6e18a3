"""Tasks and promises: what can be waited for.

These are the handles that programs hold, the bookkeeping of one task, and the timers of all. The
scheduler decides when they run, wait and end.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from slotwise.effects._effects import Cancel
from slotwise.effects._errors import TaskCancelledError
from slotwise.effects._program import Steps, name_of

if TYPE_CHECKING:
    from slotwise.effects._permits import HeldPermits
    from slotwise.effects._scheduler import Scheduler
    from slotwise.effects._semaphores import Semaphore


T = TypeVar("T")


# When, in which order, whom to wake; see `_tasks`.
Timer = tuple[float, int, "Task[Any]"]


class Blocker(Protocol):
    """What a task is parked on."""

    def _withdraw(self, task: Task[Any], /) -> None:
        """The task no longer waits, or will not see what it was woken with."""

    def _awaited(self) -> object:
        """Return what it waits for, for the diagnosis of a deadlock."""


class Observer(Protocol):
    """Something that is told when a task or promise ends."""

    def ended(self, target: Future[Any], /) -> None: ...


class Future(Generic[T]):
    """What tasks and promises have in common: an end, with a value or an error."""

    __slots__ = (
        "_done",
        "_end_order",
        "_error",
        "_observers",
        "_retrievals",
        "_scheduler",
        "_traceback",
        "_value",
    )

    _scheduler: Scheduler
    _done: bool
    _value: T | None
    _error: BaseException | None
    _traceback: TracebackType | None  # of the error, as it was when it ended
    _end_order: int  # set at the end; tells who was first
    _retrievals: int  # how many have seen the error
    _observers: dict[Observer, None] | None

    @property
    def done(self) -> bool:
        return self._done

    def _error_to_raise(self) -> BaseException:
        """Return the error for one more waiter."""
        error = self._error
        assert error is not None
        # Otherwise the traceback would grow with every waiter.
        error.__traceback__ = self._traceback
        return error

    # As the Blocker of a task that waits for this:

    def _withdraw(self, task: Task[Any]) -> None:
        if self._observers is not None:
            self._observers.pop(task, None)
        if self._done and self._error is not None:
            self._retrievals -= 1

    def _awaited(self) -> object:
        return self


class Promise(Future[T]):
    """A value that some task will give; made by `CreatePromise`."""

    __slots__ = ("name",)

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self.name = name
        self._done = False
        self._value = None
        self._error = None
        self._traceback = None
        self._observers = None
        self._retrievals = 0

    def __repr__(self) -> str:
        return f"<Promise {self.name!r}{' done' if self._done else ''}>"


class Task(Future[T]):
    """A program that runs beside others; made by `Spawn`."""

    __slots__ = (
        "_blocker",
        "_cancellation",
        "_function",
        "_held",
        "_inbox",
        "_name",
        "_parked",
        "_pending",
        "_stack",
        "_steps",
        "_thrown",
        "_timer",
        "number",
    )

    number: int  # 0 is the root's, the others count up as they are spawned
    _steps: Any  # the generator to resume; None when it has ended
    _stack: list[Steps[Any]] | None  # those that wait for it, outermost first
    _inbox: object  # what its yield answers next
    _thrown: BaseException | None  # what its yield raises next, instead
    _parked: bool  # neither ready nor running
    # What it is or was last parked on. Kept until it is resumed, so that a
    # cancellation in between can give back what it was woken with.
    _blocker: Blocker | None
    _timer: Timer | None
    # What it holds, by semaphore; `_permits` reads and writes it.
    _held: dict[Semaphore, list[HeldPermits]] | None
    _cancellation: TaskCancelledError | None  # the last one it was sent
    _pending: TaskCancelledError | None  # one to be seen at the next switch

    def __init__(
        self,
        scheduler: Scheduler,
        number: int,
        function: Callable[..., Any],
        steps: Steps[T],
        name: str | None,
    ) -> None:
        self._scheduler = scheduler
        self.number = number
        self._function = function
        self._steps = steps
        self._name = name
        self._done = self._parked = False
        self._value = self._error = self._traceback = self._observers = None
        self._stack = self._inbox = self._thrown = self._blocker = self._timer = None
        self._held = self._cancellation = self._pending = None
        self._retrievals = 0

    @property
    def name(self) -> str:
        """As given to `Spawn`, or made of the program's name and the task's number."""
        if self._name is None:
            self._name = name_of(self._function).strip("_")
            if self.number:
                self._name += f"-{self.number}"
        return self._name

    @property
    def cancelled(self) -> bool:
        """Whether it ended by cancellation."""
        return isinstance(self._error, TaskCancelledError) and self._error.task is self

    def cancel(self) -> Cancel:
        """Return the effect that cancels it: ``yield task.cancel()``."""
        return Cancel(self)

    def ended(self, target: Future[Any]) -> None:
        """Resume: what it waited for has ended."""
        if target._error is None and self._timer is None:
            # What `wake` does, without the calls: most waits end here.
            self._inbox = target._value
            self._parked = False
            self._scheduler.ready.append(self)
        else:
            self._scheduler.hand_over(target, self)

    def _error_to_raise(self) -> BaseException:
        if self.cancelled:
            return TaskCancelledError(self)
        return super()._error_to_raise()

    def __repr__(self) -> str:
        state = (
            ("cancelled" if self.cancelled else "failed" if self._error is not None else "done")
            if self._done
            else "parked"
            if self._parked
            else "ready"
        )
        return f"<Task {self.name!r} {state}>"


# Fewer cancelled timers than this are not worth a clean-up.
_FEW = 64


class Timers:
    """The timers of all tasks of a run, earliest first."""

    __slots__ = ("_count", "_dead", "_heap")

    # Between any two calls:
    #   T1  a task's _timer is in the heap; an entry that is no task's _timer is dead
    #   T2  _dead entries of the heap are dead

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._count = 0  # breaks ties: first come, first served
        self._dead = 0

    def set(self, task: Task[Any], when: float) -> None:
        self._count += 1
        task._timer = timer = (when, self._count, task)
        heappush(self._heap, timer)

    def drop(self, task: Task[Any]) -> None:
        task._timer = None
        self._dead += 1
        if self._dead > _FEW + len(self._heap) // 2:
            self._heap = [timer for timer in self._heap if timer[2]._timer is timer]
            heapify(self._heap)
            self._dead = 0

    def earliest(self) -> float | None:
        """Return when the next timer is due; None if there is none."""
        heap = self._heap
        while heap and heap[0][2]._timer is not heap[0]:
            heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> Task[Any] | None:
        """Remove and return the task whose due timer is the earliest."""
        when = self.earliest()
        if when is None or when > now:
            return None
        task = heappop(self._heap)[2]
        task._timer = None
        return task
