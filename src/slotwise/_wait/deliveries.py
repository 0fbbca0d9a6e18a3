"""Do in order, outside the section, what was decided inside: wake those whose wait has ended.

Two threads that change something one after the other leave the section in any order. So
each posts its wake-ups inside, and whoever comes first delivers all that are posted. The
order of the wake-ups is then that of the grants. Who is woken, and how, is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from slotwise._wait.section import delivery_lock


class _Deliveries:
    """What is posted, and whether the thread that has the lock is delivering it."""

    __slots__ = ("posted", "running")

    def __init__(self) -> None:
        self.posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.running = False


_deliveries = _Deliveries()


def post(deliver: Callable[..., object], *args: Any) -> None:
    """Have ``deliver`` called after the section, *in the section*; it must not wait for anybody."""
    _deliveries.posted.append((deliver, args))


def deliver_posted(_: object = None) -> None:
    """Deliver all that is posted; when this returns, nothing posted before is left.

    Unless it interrupts itself, by a garbage collection or a signal handler: then what is
    left is delivered when the interrupted call continues.
    """
    deliveries = _deliveries
    while deliveries.posted:
        with delivery_lock:
            if deliveries.running:
                return
            deliveries.running = True
            try:
                while deliveries.posted:
                    deliver, args = deliveries.posted.popleft()
                    deliver(*args)
            except BaseException:  # a signal handler's: the others are woken all the same
                deliveries.running = False
                deliver_posted()
                raise
            finally:
                deliveries.running = False
