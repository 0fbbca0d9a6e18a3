"""Run a change under the one lock of this process, even when code interrupts itself.

The interpreter runs one thread at a time anyway, and the frequent operations take no
lock. So one lock guards everything that threads share in memory: ledgers, names and
timers. A lock for each would cost memory, and an order in which to take them.

A section can be interrupted in its own thread: by a garbage collection that ends a
block, or by a signal handler that releases. The lock is re-entrant, so such a call
doesn't wait for itself; it finds the section busy, and queues its work for whoever
leaves the section. A release therefore never blocks and never fails. A request can't be
postponed, and is refused there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from slotwise._core import fork
from slotwise._core.messages import INTERRUPTED

T = TypeVar("T")

# Taken only by `with`: between an acquire() and a try, a signal handler could raise,
# and the lock would stay taken forever.
lock = fork.lock_held_over_forks()


class _Section:
    """Whether a section is running; may be read without the lock."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False


section = _Section()

postponed: deque[tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], None]]] = deque()


def exclusive(work: Callable[..., T], *args: Any) -> T:
    """Run ``work`` in a section, and return its result.

    Raises:
        RuntimeError: this thread is in the middle of another section.
    """
    try:
        with lock:
            if section.busy:
                raise RuntimeError(INTERRUPTED)
            section.busy = True
            try:
                return work(*args)
            finally:
                section.busy = False
    finally:
        if postponed:
            run_postponed()


def exclusive_or_later(work: Callable[..., T], *args: Any, then: Callable[[T], None]) -> None:
    """Run ``work`` like `exclusive`, then call ``then`` with its result, without the lock.

    If this thread is in the middle of another section, both run after that.
    """
    postponed.append((work, args, then))
    run_postponed()


def run_postponed() -> None:
    """Do what was postponed; whoever leaves a section has to, if there is anything."""
    while postponed:
        with lock:
            if section.busy or not postponed:
                return  # whoever is in the section runs the rest when it leaves
            section.busy = True
            try:
                work, args, then = postponed.popleft()
                result = work(*args)
            finally:
                section.busy = False
        then(result)
