"""The one lock of this process, and how a change is made under it.

The interpreter runs one thread at a time anyhow, and what happens often happens
without a lock. So one lock guards all that threads share here, ledgers, names
and timers: a lock for each would cost memory and an order in which to take them.

A section can be interrupted in its own thread: by a garbage collection that ends
somebody's block, or by a signal handler that releases. The lock is re-entrant,
so that such a call does not wait for itself; it finds the section busy, and
leaves its work to whoever leaves the section. Giving back therefore never
blocks and never fails. Taking can't be put off, and is refused there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from slotwise._core import fork
from slotwise._core.messages import INTERRUPTED

T = TypeVar("T")

# Held while wake-ups are delivered (`_wait.deliveries`). Whoever has it may need the section,
# and nobody in the section needs it, so it comes first: a fork takes them in this order.
delivery_lock = fork.lock_held_over_forks()

# Taken by `with` alone: between an acquire() and a try, a signal handler could
# raise, and the lock would stay taken for ever.
lock = fork.lock_held_over_forks()


class _Section:
    """Whether somebody is changing something; read without the lock by who only wonders."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False


section = _Section()

_left_to_do: deque[tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], None]]] = deque()


def exclusive(work: Callable[..., T], *args: Any) -> T:
    """Run ``work`` while nobody else changes anything.

    Raises:
        RuntimeError: this thread is in the middle of another change.
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
        if _left_to_do:
            _do_what_is_left()


def exclusive_or_later(work: Callable[..., T], *args: Any, then: Callable[[T], None]) -> None:
    """Run ``work`` like `exclusive`, and ``then`` with its result after the lock.

    If this thread is in the middle of another change, both run after that.
    """
    _left_to_do.append((work, args, then))
    _do_what_is_left()


def _do_what_is_left() -> None:
    while _left_to_do:
        with lock:
            if section.busy or not _left_to_do:
                return  # who is busy looks here when it is done
            section.busy = True
            try:
                work, args, then = _left_to_do.popleft()
                result = work(*args)
            finally:
                section.busy = False
        then(result)
