"""The effects a program can yield: plain descriptions of what it wants.

They do nothing themselves, except to warn when one is never yielded. Arguments are kept as given
and checked where the effect is yielded, so that a program can catch the error.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slotwise.effects._tracebacks import is_internal

if TYPE_CHECKING:
    from slotwise.effects._program import Program
    from slotwise.effects._semaphores import Semaphore
    from slotwise.effects._tasks import Promise, Task

T = TypeVar("T")


class Effect(Generic[T]):
    """Something a program asks for by yielding it; ``T`` is the type of the answer.

    Subclass it for effects of your own, and give `run` a handler for them. One that is dropped
    without being yielded causes a RuntimeWarning: most likely a ``yield`` is missing.
    """

    __slots__ = ("_used",)

    _used: bool  # set once it was yielded, or is part of one that will be

    def __del__(self) -> None:
        if hasattr(self, "_used") or sys.is_finalizing():
            return
        _use_what_is_inside(self)  # one warning is enough
        frame = sys._getframe()
        while is_internal(frame.f_code) and frame.f_back is not None:
            frame = frame.f_back
        message = f"{self!r} was made and never yielded, so it did nothing"
        place = frame.f_code.co_filename, frame.f_lineno
        warnings.warn_explicit(message, RuntimeWarning, *place, source=self)

    @property
    def _kind(self) -> str:
        """The name to show."""
        return type(self).__name__

    def __repr__(self) -> str:
        """Show the arguments as they are given, without those that were left out."""
        fields = getattr(self, "__dataclass_fields__", {})
        shown: list[str] = []
        some_left_out = False
        for name, value in _values_of(self).items():
            known = fields.get(name)
            if known is not None and (not known.repr or value == known.default):
                some_left_out = True
            else:
                shown.append(f"{name}={_short(value)}" if some_left_out else _short(value))
        return f"{self._kind}({', '.join(shown)})"


def use(given: object) -> None:
    """Note that an effect was yielded, or is part of one that was; ignore everything else."""
    if isinstance(given, Effect):
        _mark(given, True)


# Not as an attribute: an effect may be a frozen dataclass.
_mark = Effect.__dict__["_used"].__set__


def _use_what_is_inside(effect: Effect[Any]) -> None:
    to_do: list[object] = [effect]
    for one in to_do:
        if isinstance(one, Effect) and not hasattr(one, "_used"):
            use(one)
            to_do += _values_of(one).values()
        elif isinstance(one, tuple):
            to_do += one


def _values_of(effect: Effect[Any]) -> dict[str, object]:
    names = [name for kind in reversed(type(effect).__mro__) for name in _slots_of(kind)]
    names += getattr(effect, "__dict__", ())
    return {name: getattr(effect, name, None) for name in names}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("_"))


def _short(value: object) -> str:
    """Show handles by their name, everything else by its repr."""
    if isinstance(value, tuple):  # of programs, the names will do
        named = [item.name if hasattr(item, "start") else _short(item) for item in value]
        return ", ".join(named)
    name = getattr(value, "name", None)
    is_recipe = isinstance(value, Effect) or hasattr(value, "start")  # which a program has
    return name if isinstance(name, str) and not is_recipe else repr(value)


# ------------------------------------------------------------------ semaphores


@dataclass(slots=True, eq=False, repr=False)
class CreateSemaphore(Effect["Semaphore"]):
    """Create a semaphore with ``permits`` permits, all free.

    Args:
        permits: an int of at least 1.
        name: shown in messages; ``semaphore-1``, ``semaphore-2``... by default.
        owned: only the task that acquired a permit may release it. Otherwise any task may, as long
            as one is outstanding: tasks can signal each other that way.
    """

    permits: int
    name: str | None = field(default=None, repr=False)
    owned: bool = field(default=False, repr=False)


@dataclass(slots=True, eq=False, repr=False)
class AcquireSemaphore(Effect[None]):
    """Take ``n`` permits, waiting in order of arrival.

    Raises:
        AcquireTimeout: ``timeout`` seconds passed first; nothing is taken.
        ValueError: ``n`` is below 1, or more than the semaphore has.
    """

    semaphore: Semaphore
    n: int = 1
    timeout: float | None = None


@dataclass(slots=True, eq=False, repr=False)
class TryAcquire(Effect[bool]):
    """Take ``n`` permits if that passes no waiter; otherwise take none and answer False."""

    semaphore: Semaphore
    n: int = 1


@dataclass(slots=True, eq=False, repr=False)
class ReleaseSemaphore(Effect[None]):
    """Release ``n`` permits; the first waiters get them at once.

    The task's latest acquires are released first; if it has too few permits, the rest is taken from
    the oldest acquires of other tasks.

    Raises:
        RuntimeError: fewer are outstanding, or the semaphore is ``owned`` and the
            task holds fewer; nothing is changed.
    """

    semaphore: Semaphore
    n: int = 1


@dataclass(slots=True, eq=False, repr=False)
class TransferPermit(Effect[None]):
    """Transfer ``n`` of the task's permits to another task."""

    semaphore: Semaphore
    task: Task[Any]
    n: int = 1


@dataclass(slots=True, eq=False, repr=False)
class WithPermit(Effect[T]):
    """Run a program while holding ``n`` permits, and answer its value.

    The permits are released whatever happens to the program: there is no moment at which they are
    taken but their release is not yet guaranteed.
    """

    semaphore: Semaphore
    program: Program[T] | Effect[T] = field(repr=False)
    n: int = 1


@dataclass(slots=True, eq=False, repr=False)
class SemaphoreInfo(Effect["SemaphoreState"]):
    """Answer the state of a semaphore, as a `SemaphoreState`."""

    semaphore: Semaphore


@dataclass(frozen=True, slots=True)
class SemaphoreState:
    """The answer to `SemaphoreInfo`, as of that moment.

    ``waiting`` is in the order of the queue. ``holders`` has each task once, including ended tasks
    whose permits were not released.
    """

    available: int
    permits: int
    waiting: tuple[Task[Any], ...]
    holders: tuple[Task[Any], ...]


# ----------------------------------------------------------------------- tasks


@dataclass(slots=True, eq=False, repr=False)
class Spawn(Effect["Task[T]"]):
    """Start a program as a task of its own; answers its `Task`, without switching to it."""

    program: Program[T] | Effect[T]
    name: str | None = field(default=None, repr=False)


@dataclass(slots=True, eq=False, repr=False)
class Wait(Effect[T]):
    """Wait for a task or promise, and answer its value; its error is raised."""

    target: Task[T] | Promise[T]


class Gather(Effect[list[T]]):
    """Wait for all, and answer their values in the order given.

    The first failure is raised at once, and the others keep running. Programs are spawned, and
    cancelled if the gathering task is cancelled.
    """

    __slots__ = ("targets",)

    def __init__(self, *targets: Task[T] | Promise[T] | Program[T] | Effect[T]) -> None:
        self.targets = targets


class Race(Effect[T]):
    """Wait for whichever ends first, and answer its value; its error is raised.

    The others are cancelled, and have ended by then.
    """

    __slots__ = ("targets",)

    def __init__(self, *targets: Task[T] | Promise[T] | Program[T] | Effect[T]) -> None:
        self.targets = targets


@dataclass(slots=True, eq=False, repr=False)
class Cancel(Effect[None]):
    """Ask a task to stop, without waiting: it sees `TaskCancelledError` at its ``yield``."""

    task: Task[Any]


@dataclass(slots=True, eq=False, repr=False)
class Try(Effect["Outcome[T]"]):
    """Run a program and answer its `Outcome`, so that its error can be inspected.

    A cancellation of the task itself is not an outcome: it propagates.
    """

    program: Program[T] | Effect[T]


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of a `Try`: a value or an error."""

    value: T | None = None
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


# -------------------------------------------------------- time, switches, others


class Checkpoint(Effect[None]):
    """Let the other ready tasks go first."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class Sleep(Effect[None]):
    """Wait for ``seconds``: of virtual time, except under `run_async`."""

    seconds: float


class Now(Effect[float]):
    """Answer the time in seconds: since the start of the run, or by the event loop's clock."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class Await(Effect[T]):
    """Await something, and answer its result; under `run_async` only."""

    awaitable: Awaitable[T]


@dataclass(slots=True, eq=False, repr=False)
class CreatePromise(Effect["Promise[T]"]):
    """Create a promise: a value that one task provides later and others wait for."""

    name: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class CompletePromise(Effect[None]):
    """Give a promise its value."""

    promise: Promise[Any]
    value: object = None


@dataclass(slots=True, eq=False, repr=False)
class FailPromise(Effect[None]):
    """Give a promise an error instead of a value."""

    promise: Promise[Any]
    error: BaseException
