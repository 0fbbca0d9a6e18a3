"""The clock of the process, with the timers that go by it.

`slotwise.testing.FakeClock` replaces the clock and stops the thread. What the timers are
for is up to their owners.

The timers run in a daemon thread and not in an event loop: a ttl must end for holders in plain
threads too, and after the holder's event loop was closed. The thread starts with the first timer
and ends when none is left. If it can't be started, because the system has no thread left or the
interpreter is shutting down, those who wait call the timers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from _thread import LockType
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias
from weakref import WeakMethod

from slotwise._core import fork
from slotwise._wait.section import lock
from slotwise._wait.threads import SingleThread

# Call it as `clock.now()` and never import it by name: FakeClock replaces it.
now: Callable[[], float] = time.monotonic

# The thread wakes at least this often: waiting for a condition has a maximum timeout.
_LONGEST_NAP = 3600.0

# While the thread can't be started, it is tried again this often.
_RETRY = 1.0

# Timers of garbage-collected owners are removed when they are more than half, and more than this.
_FEW_DEAD = 64

# When it is due, a number that no other has, and what is called.
_Timer: TypeAlias = tuple[float, int, WeakMethod[Any]]


class _Glance:
    """The time when the clock was last read, for timestamps that must cost nothing."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = now()


glance = _Glance()


class Timekeeper:
    """Calls methods at given times, earliest first."""

    # Between any two calls:
    #   T1  while there are timers, a thread runs that will wake for the earliest,
    #       unless the clock is stopped, all of them were set lazily, or `_threadless` is set

    def __init__(self) -> None:
        # The lock of sections: timers are set inside sections too, and two locks could be
        # taken in different orders.
        self._changed = threading.Condition(lock)
        self._timers: list[_Timer] = []
        self._dead = 0
        self._tickets = itertools.count()
        self._single = SingleThread("timekeeper", self._run, lock)
        self.stopped = False
        self._threadless = False  # whether the thread couldn't be started
        self._substitute_at = 0.0  # when an event loop will do its work, if it isn't closed before

    def call_at(
        self, when: float, method: Callable[[float], None], *, lazily: bool = False
    ) -> None:
        """Call the bound ``method`` with ``when`` at that time; there is no cancelling.

        It doesn't keep its owner alive. With ``lazily`` no thread is started for it: it is
        called once there is a thread for another timer.
        """
        with self._changed:
            if self._dead > _FEW_DEAD and self._dead * 2 > len(self._timers):
                self._sweep()
            ticket = next(self._tickets)
            heappush(self._timers, (when, ticket, WeakMethod[Any](method, self._owner_died)))
            if self._single.thread is None:
                if not lazily and not self.stopped:
                    self._start()
            elif self._timers[0][1] == ticket:
                self._changed.notify()

    def sleep_on(self, waker: LockType) -> None:
        """Block this thread until another one releases ``waker``."""
        while self._threadless:
            if waker.acquire(timeout=self._substitute()):
                return
        waker.acquire()

    def run_due(self, by: float, move_to: Callable[[float], None]) -> None:
        """Call all timers that are due by ``by``, in this thread, each at its own time."""
        while True:
            with self._changed:
                if not self._timers or self._timers[0][0] > by:
                    return
                when, _, weak = heappop(self._timers)
            move_to(when)
            method = weak()
            if method is not None:
                method(when)

    def stop(self) -> None:
        """Stop the clock: from now on only `run_due` calls timers."""
        with self._changed:
            self.stopped = True

    def resume(self) -> None:
        with self._changed:
            self.stopped = False
            if self._timers and self._single.thread is None:
                self._start()
            self._changed.notify()

    def _owner_died(self, _: WeakMethod[Any]) -> None:
        self._dead += 1  # nothing else: this may run inside a garbage collection

    def _sweep(self) -> None:
        self._timers = [timer for timer in self._timers if timer[2]() is not None]
        heapify(self._timers)
        self._dead = 0

    def _start(self) -> None:
        try:
            self._single.start()
        except RuntimeError:
            if not self._threadless and not sys.is_finalizing():
                _log.exception("can't start the thread for timers: ttls and timeouts may be late")
            self._threadless = True
            self._ask_loop()
        else:
            self._threadless = False

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._timers:
                    self._single.thread = None
                    return
                delay = _LONGEST_NAP if self.stopped else self._timers[0][0] - now()
                if delay > 0:
                    self._changed.wait(min(delay, _LONGEST_NAP))
                    continue
                timer = heappop(self._timers)
            _call(timer)

    # ------------------------------------------------------ without the thread

    def _ask_loop(self) -> None:
        """Have the event loop that runs here do the thread's work, if there is one."""
        loop = asyncio._get_running_loop()
        if loop is not None:
            present, delay = time.monotonic(), self._delay()
            if not present <= self._substitute_at <= present + delay:
                self._substitute_at = present + delay
                loop.call_later(delay, self._substitute)

    def _substitute(self) -> float:
        """Call what is due, and try to start the thread; return when to do that again."""
        while (timer := self._next_overdue()) is not None:
            _call(timer)
        with self._changed:
            if self._timers and self._single.thread is None and not self.stopped:
                self._start()
            return self._delay()

    def _next_overdue(self) -> _Timer | None:
        """Remove and return a timer that is due, unless there is a thread that does it."""
        with self._changed:
            if self._single.thread is not None or self._delay() > 0:
                return None
            return heappop(self._timers)

    def _delay(self) -> float:
        """Return how long nothing has to be done."""
        if self.stopped or not self._timers:
            return _RETRY
        return min(max(self._timers[0][0] - now(), 0.0), _RETRY)

    def after_fork_in_child(self) -> None:
        """Start the thread again: a fork copies the timers but not the thread."""
        self._changed = threading.Condition(lock)
        self._single.thread = None
        if self._timers and not self.stopped:
            self._start()


def _call(timer: _Timer) -> None:
    when, _, weak = timer
    method = weak()
    if method is not None:
        try:
            method(when)
        except Exception:
            # A bug, but other timers must not suffer.
            _log.exception("a timer failed")


_log = logging.getLogger("slotwise")

timekeeper = Timekeeper()

fork.in_child(fork.Step.THREADS, timekeeper.after_fork_in_child)
