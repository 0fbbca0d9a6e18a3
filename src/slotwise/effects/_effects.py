"""The effects a program can yield: plain descriptions of what it wants.

They do nothing themselves, except to warn when one is never yielded. Arguments are kept as given
and checked where the effect is yielded, so that a program can catch the error.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slotwise.effects._unused import SourceLine, calling_line, warn_unused

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

    __slots__ = ("_made_at", "_used")

    _used: bool  # set once it was yielded, or is part of one that will be
    _made_at: SourceLine  # set only after `_record_places`

    def __del__(self) -> None:
        try:
            self._used  # noqa: B018
        except AttributeError:
            pass
        else:
            return
        _use_what_is_inside(self)  # one warning is enough
        warn_unused(self)

    @staticmethod
    def _record_places() -> None:
        """From now on, record where effects are made, for the warning."""
        Effect.__new__ = _new_with_place  # type: ignore[method-assign,assignment]

    @property
    def _kind(self) -> str:
        """The name to show."""
        return type(self).__name__

    def __repr__(self) -> str:
        shown = [_short(value) for value in _values_of(self)]
        while shown and shown[-1] == "None":  # what was most likely left out
            shown.pop()
        return f"{self._kind}({', '.join(shown)})"


def use(given: object) -> None:
    """Note that an effect was yielded, or is part of one that was; ignore everything else."""
    if isinstance(given, Effect):
        _mark(given, True)


# Not as attributes: an effect may be a frozen dataclass.
_mark = Effect.__dict__["_used"].__set__
_set_place = Effect.__dict__["_made_at"].__set__


def _new_with_place(kind: type[Effect[Any]], *_args: object, **_options: object) -> Effect[Any]:
    made = object.__new__(kind)
    place = calling_line()
    if place is not None:
        _set_place(made, place)
    return made


def _use_what_is_inside(effect: Effect[Any]) -> None:
    to_do: list[object] = [effect]
    for one in to_do:
        if isinstance(one, Effect) and not hasattr(one, "_used"):
            use(one)
            to_do += _values_of(one)
        elif isinstance(one, tuple):
            to_do += one


def _values_of(effect: Effect[Any]) -> list[object]:
    names = [name for kind in reversed(type(effect).__mro__) for name in _slots_of(kind)]
    names += getattr(effect, "__dict__", ())
    return [getattr(effect, name, None) for name in names]


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("_"))


def _short(value: object) -> str:
    """Show handles by their name, everything else by its repr."""
    if isinstance(value, tuple):
        return ", ".join(_short(item) for item in value)
    name = getattr(value, "name", None)
    if isinstance(name, str) and not isinstance(value, Effect):
        return name
    return repr(value)


# ------------------------------------------------------------------ semaphores


class CreateSemaphore(Effect["Semaphore"]):
    """Create a semaphore with ``permits`` permits, all free.

    Args:
        permits: an int of at least 1.
        name: shown in messages; ``semaphore-1``, ``semaphore-2``... by default.
        owned: only the task that acquired a permit may release it. Otherwise any task may, as long
            as one is outstanding: tasks can signal each other that way.
    """

    __slots__ = ("name", "owned", "permits")

    def __init__(self, permits: int, name: str | None = None, owned: bool = False) -> None:
        self.permits = permits
        self.name = name
        self.owned = owned

    def __repr__(self) -> str:
        return f"CreateSemaphore({self.permits})"


class AcquireSemaphore(Effect[None]):
    """Take ``n`` permits, waiting in order of arrival.

    Raises:
        AcquireTimeout: ``timeout`` seconds passed first; nothing is taken.
        ValueError: ``n`` is below 1, or more than the semaphore has.
    """

    __slots__ = ("n", "semaphore", "timeout")

    def __init__(self, semaphore: Semaphore, n: int = 1, timeout: float | None = None) -> None:
        self.semaphore = semaphore
        self.n = n
        self.timeout = timeout

    def __repr__(self) -> str:
        more = "" if self.n == 1 else f", {self.n}"
        more += "" if self.timeout is None else f", timeout={self.timeout!r}"
        return f"{self._kind}({_short(self.semaphore)}{more})"


class TryAcquire(Effect[bool]):
    """Take ``n`` permits if that passes no waiter; otherwise take none and answer False."""

    __slots__ = ("n", "semaphore")

    def __init__(self, semaphore: Semaphore, n: int = 1) -> None:
        self.semaphore = semaphore
        self.n = n

    def __repr__(self) -> str:
        return _permit_repr(self, self.semaphore, self.n)


class ReleaseSemaphore(Effect[None]):
    """Release ``n`` permits; the first waiters get them at once.

    The task's latest acquires are released first; if it has too few permits, the rest is taken from
    the oldest acquires of other tasks.

    Raises:
        RuntimeError: fewer are outstanding, or the semaphore is ``owned`` and the
            task holds fewer; nothing is changed.
    """

    __slots__ = ("n", "semaphore")

    def __init__(self, semaphore: Semaphore, n: int = 1) -> None:
        self.semaphore = semaphore
        self.n = n

    def __repr__(self) -> str:
        return _permit_repr(self, self.semaphore, self.n)


class TransferPermit(Effect[None]):
    """Transfer ``n`` of the task's permits to another task."""

    __slots__ = ("n", "semaphore", "task")

    def __init__(self, semaphore: Semaphore, task: Task[Any], n: int = 1) -> None:
        self.semaphore = semaphore
        self.task = task
        self.n = n

    def __repr__(self) -> str:
        return f"TransferPermit({_short(self.semaphore)}, {_short(self.task)}, {self.n})"


class WithPermit(Effect[T]):
    """Run a program while holding ``n`` permits, and answer its value.

    The permits are released whatever happens to the program: there is no moment at which they are
    taken but their release is not yet guaranteed.
    """

    __slots__ = ("n", "program", "semaphore")

    def __init__(self, semaphore: Semaphore, program: Program[T] | Effect[T], n: int = 1) -> None:
        self.semaphore = semaphore
        self.program = program
        self.n = n

    def __repr__(self) -> str:
        return _permit_repr(self, self.semaphore, self.n)


class SemaphoreInfo(Effect["SemaphoreState"]):
    """Answer the state of a semaphore, as a `SemaphoreState`."""

    __slots__ = ("semaphore",)

    def __init__(self, semaphore: Semaphore) -> None:
        self.semaphore = semaphore


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


def _permit_repr(effect: Effect[Any], semaphore: object, n: object) -> str:
    more = "" if n == 1 else f", {n}"
    return f"{effect._kind}({_short(semaphore)}{more})"


# ----------------------------------------------------------------------- tasks


class Spawn(Effect["Task[T]"]):
    """Start a program as a task of its own; answers its `Task`, without switching to it."""

    __slots__ = ("name", "program")

    def __init__(self, program: Program[T] | Effect[T], name: str | None = None) -> None:
        self.program = program
        self.name = name

    def __repr__(self) -> str:
        return f"Spawn({self.program!r})"


class Wait(Effect[T]):
    """Wait for a task or promise, and answer its value; its error is raised."""

    __slots__ = ("target",)

    def __init__(self, target: Task[T] | Promise[T]) -> None:
        self.target = target


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


class Cancel(Effect[None]):
    """Ask a task to stop, without waiting: it sees `TaskCancelledError` at its ``yield``."""

    __slots__ = ("task",)

    def __init__(self, task: Task[Any]) -> None:
        self.task = task


class Try(Effect["Outcome[T]"]):
    """Run a program and answer its `Outcome`, so that its error can be inspected.

    A cancellation of the task itself is not an outcome: it propagates.
    """

    __slots__ = ("program",)

    def __init__(self, program: Program[T] | Effect[T]) -> None:
        self.program = program


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


class Sleep(Effect[None]):
    """Wait for ``seconds``: of virtual time, except under `run_async`."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Now(Effect[float]):
    """Answer the time in seconds: since the start of the run, or by the event loop's clock."""

    __slots__ = ()


class Await(Effect[T]):
    """Await something, and answer its result; under `run_async` only."""

    __slots__ = ("awaitable",)

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self.awaitable = awaitable


class CreatePromise(Effect["Promise[T]"]):
    """Create a promise: a value that one task provides later and others wait for."""

    __slots__ = ("name",)

    def __init__(self, name: str | None = None) -> None:
        self.name = name


class CompletePromise(Effect[None]):
    """Give a promise its value."""

    __slots__ = ("promise", "value")

    def __init__(self, promise: Promise[Any], value: object = None) -> None:
        self.promise = promise
        self.value = value


class FailPromise(Effect[None]):
    """Give a promise an error instead of a value."""

    __slots__ = ("error", "promise")

    def __init__(self, promise: Promise[Any], error: BaseException) -> None:
        self.promise = promise
        self.error = error
