"""Every exception that slotwise raises on purpose.

Each one is a SlotwiseError and also the builtin a careful caller would expect,
so that ``except TimeoutError`` works in code that doesn't know slotwise.
Wrong arguments raise plain TypeError and ValueError: they are bugs of the caller.
"""

from __future__ import annotations

__all__ = [
    "AcquireTimeout",
    "BackendError",
    "ContextReused",
    "LimitFull",
    "SemaphoreClosed",
    "SlotManagerClosed",
    "SlotwiseError",
    "UnknownSemaphore",
    "ValueConflict",
    "WouldBlockLoop",
]


class SlotwiseError(Exception):
    """The base of all of slotwise's own exceptions."""


class AcquireTimeout(SlotwiseError, TimeoutError):
    """No slot came free in time; the message says how full the limit was."""


class LimitFull(SlotwiseError, RuntimeError):
    """A newcomer was refused at once: too many wait already, or it would wait for too long.

    The first is a matter of ``max_waiting``, the second of ``shed="deadline"``.
    ``waiting`` is how many wait there, ``estimate`` in about how many seconds a newcomer would
    be served; None if that is not known.
    """

    waiting: int
    estimate: float | None

    def __init__(self, *args: object, waiting: int = 0, estimate: float | None = None) -> None:
        super().__init__(*args)
        self.waiting = waiting
        self.estimate = estimate


class SemaphoreClosed(SlotwiseError, RuntimeError):
    """The semaphore was closed before or during the wait.

    ``reason`` is what `Semaphore.close_everywhere` was told, or None.
    """

    reason: str | None

    def __init__(self, *args: object, reason: str | None = None) -> None:
        super().__init__(*args)
        self.reason = reason


class SlotManagerClosed(SemaphoreClosed):
    """The slot manager was closed before or during the wait."""


class UnknownSemaphore(SlotwiseError, LookupError):
    """There is no semaphore of that name, and its value is not known to make one."""


class ValueConflict(SlotwiseError, ValueError):
    """Two users of one name disagree about its value while it is in use.

    ``value`` is the one in use; None if it is not that of a semaphore. ``rules`` say how it moves
    by itself; None if it is a fixed one.
    """

    value: int | None
    rules: str | None

    def __init__(self, *args: object, value: int | None = None, rules: str | None = None) -> None:
        super().__init__(*args)
        self.value = value
        self.rules = rules


class WouldBlockLoop(SlotwiseError, RuntimeError):
    """A blocking call was made in the thread of a running event loop."""


class ContextReused(SlotwiseError, RuntimeError):
    """A ``cm()`` object was entered twice, or left without being entered."""


class BackendError(SlotwiseError, ConnectionError):
    """The server or file behind a semaphore can't be used; the message names it and the remedy."""
