"""The clock of the process, with the timers that go by it.

`slotwise.testing.FakeClock` replaces the clock and stops the thread. What the timers are
for is up to their owners.

The timers run in a daemon thread and not in an event loop: a ttl must end for holders in plain
threads too, and after the holder's event loop was closed. The thread starts with the first timer
and ends when none is left. It can't start if the system has no thread left, and, in Python 3.12,
while the interpreter is shutting down; then nobody begins to wait.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any
from weakref import WeakMethod

from slotwise._core import fork
from slotwise._core.messages import no_thread
from slotwise._wait.deliveries import deliver_posted, post
from slotwise._wait.section import lock
from slotwise._wait.threads import SingleThread

# Call it as `clock.now()` and never import it by name: FakeClock replaces it.
now: Callable[[], float] = time.monotonic

# The thread wakes at least this often: waiting for a condition has a maximum timeout.
_LONGEST_NAP = 3600.0

# Timers of garbage-collected owners are removed when they are more than half, and more than this.
_FEW_DEAD = 64


class Timekeeper:
    """Calls methods at given times, earliest first."""

    # Between any two calls:
    #   T1  while there are timers, a thread runs that will wake for the earliest,
    #       unless the clock is stopped, or `failure` says why not

    def __init__(self) -> None:
        # The lock of sections: timers are set inside sections too, and two locks could be
        # taken in different orders.
        self._changed = threading.Condition(lock)
        self._timers: list[tuple[float, int, WeakMethod[Any]]] = []
        self._dead = 0
        self._tickets = itertools.count()
        self._single = SingleThread("timekeeper", self._run, lock)
        self.stopped = False
        # Why the thread couldn't be started; the next timer tries again, and whoever waits next.
        self.failure: str | None = None

    def call_at(self, when: float, method: Callable[[float], None]) -> None:
        """Call the bound ``method`` with ``when`` at that time; there is no cancelling.

        It doesn't keep its owner alive.
        """
        with self._changed:
            if self._dead > _FEW_DEAD and self._dead * 2 > len(self._timers):
                self._sweep()
            ticket = next(self._tickets)
            heappush(self._timers, (when, ticket, WeakMethod[Any](method, self._owner_died)))
            if self._single.thread is None:
                if not self.stopped:
                    self._start_thread()
            elif self._timers[0][1] == ticket:
                self._changed.notify()
        # In a section, whoever leaves it makes the posted calls.
        if self.failure is not None and not self._changed._is_owned():  # type: ignore[attr-defined]
            deliver_posted()

    def start(self) -> str | None:
        """Start the thread if it couldn't be started before; not under the lock.

        Returns why that is impossible, or None.
        """
        if self.failure is None:
            return None
        with self._changed:
            if self._timers and self._single.thread is None and not self.stopped:
                self._start_thread()
            else:
                self.failure = None
            failure = self.failure
        deliver_posted()
        return failure

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
                self._start_thread()
            self._changed.notify()

    def _owner_died(self, _: WeakMethod[Any]) -> None:
        self._dead += 1  # nothing else: this may run inside a garbage collection

    def _sweep(self) -> None:
        self._timers = [timer for timer in self._timers if timer[2]() is not None]
        heapify(self._timers)
        self._dead = 0

    def _start_thread(self) -> None:
        try:
            self._single.start()
        except RuntimeError as error:
            if self.failure is None and not sys.is_finalizing():
                post(partial(_log.error, _NO_THREAD, error))  # a log handler may need the lock
            self.failure = str(error)
        except BaseException:  # raised by a signal handler
            self.failure = "its start was interrupted"
            raise
        else:
            self.failure = None

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
                when, _, weak = heappop(self._timers)
            method = weak()
            if method is None:
                continue
            try:
                method(when)
            except Exception:
                # A bug, but other timers must not suffer.
                _log.exception("a timer failed")
            del method  # so that its owner isn't kept alive until the next timer

    def after_fork_in_child(self) -> None:
        """Start the thread again: a fork copies the timers but not the thread."""
        self._changed = threading.Condition(lock)
        self._single.thread = None
        if self._timers and not self.stopped:
            self._start_thread()


_log = logging.getLogger("slotwise")

_NO_THREAD = "no thread for timers, so ttls and timeouts are late: %s"

timekeeper = Timekeeper()


def require_timers() -> None:
    """Make sure that timers are called, since somebody is about to wait; not under the lock.

    Raises:
        BackendError: the thread for them can't be started.
    """
    failure = timekeeper.start()
    if failure is not None:
        raise no_thread(failure)


fork.in_child(fork.Step.THREADS, timekeeper.after_fork_in_child)
