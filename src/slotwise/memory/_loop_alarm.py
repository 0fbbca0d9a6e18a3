"""LoopAlarm: a timer of the event loop whose tasks are the only waiters.

Every other alarm is set in the timer thread, which rings whatever an event loop does; being woken
by it costs a task two thread switches. A loop's own timer costs none, but rings late while the loop
is busy, and up to a millisecond late when it isn't. That doesn't matter if all waiters are tasks of
this loop; if others wait too, it is not used.
"""

from __future__ import annotations

import asyncio
from _thread import LockType
from collections.abc import Callable

from slotwise._ledger import NEVER
from slotwise._wait import clock
from slotwise._wait.wakers import Waker

# How late a loop's timer may ring, in microseconds: the time of its selector is in milliseconds.
LATE_US = 2_000

_own_time = asyncio.BaseEventLoop.time


class LoopAlarm:
    """When it rings, and in which loop; all of it *in the section*."""

    __slots__ = ("_loop", "when")

    def __init__(self) -> None:
        self.when = NEVER  # it is set; a later time is ignored
        # The loop whose tasks all waiters are; None if others wait too.
        self._loop: asyncio.AbstractEventLoop | None = None

    def expect(self, waker: Waker, *, alone: bool) -> None:
        """Note that somebody begins to wait, ``alone`` or not."""
        loop = None if isinstance(waker, LockType) else waker.get_loop()
        if loop is self._loop:
            return
        self._loop = loop if alone and _is_usable(loop) else None
        self.when = NEVER  # another loop's, which may be closed

    def set(
        self,
        when: float,
        now: float,
        ring: Callable[[float], None],
        allowed: Callable[[], bool],
    ) -> bool:
        """Have ``ring`` called at ``when``, at the latest; return False if that is impossible."""
        if self.when <= when:
            return True
        loop = self._loop
        if loop is None or loop is not asyncio._get_running_loop() or clock.timekeeper.stopped:
            return False
        if not allowed():
            return False
        self.when = when
        loop.call_later(max(when - now, 0.0), ring, when)
        return True


def _is_usable(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether its timers follow our clock, to a millisecond."""
    return isinstance(loop, asyncio.BaseEventLoop) and type(loop).time is _own_time
