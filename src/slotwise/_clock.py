"""Slotwise's time: the clock that is read, and the thread that calls when a time has come.

Both can be stopped and moved by hand, which `slotwise.testing.FakeClock` does.
Nothing here knows what the times are for.

Timers live in one daemon thread of their own and not in an event loop: a slot's
ttl must end for holders in plain threads too, and after the loop that took the
slot was closed. The thread starts with the first timer and ends when none is
left.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush

# Read as `_clock.now()`, never imported by name: FakeClock puts another in its place.
now: Callable[[], float] = time.monotonic

# The thread looks up at least this often, so no deadline is too far for a lock's time-out.
_LONGEST_NAP = 3600.0


class _Glance:
    """The time when somebody last looked, for stamps that must cost nothing."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = now()


glance = _Glance()


class Timekeeper:
    """Calls functions when their time has come, in the order of the times."""

    # Between any two calls:
    #   T1  while there are timers, a thread runs that will wake for the earliest,
    #       unless the clock is stopped, or all of them can wait for somebody to look

    def __init__(self) -> None:
        # Re-entrant, since a garbage collection in here may run code that sets a timer.
        self._changed = threading.Condition(threading.RLock())
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._tickets = itertools.count()
        self._thread: threading.Thread | None = None
        self.stopped = False

    def call_at(self, when: float, call: Callable[[], object], *, lazily: bool = False) -> None:
        """Call ``call`` in the keeper's thread at ``when``; there is no cancelling.

        With ``lazily`` no thread is started for it: it runs when one is there
        anyway, or not at all.
        """
        with self._changed:
            heappush(self._timers, (when, next(self._tickets), call))
            if self._thread is None:
                if not lazily and not self.stopped:
                    self._start()
            elif self._timers[0][2] is call:
                self._changed.notify()

    def pop_due(self, by: float) -> tuple[float, Callable[[], object]] | None:
        """Take out the earliest timer that is due ``by`` then."""
        with self._changed:
            if not self._timers or self._timers[0][0] > by:
                return None
            when, _, call = heappop(self._timers)
            return when, call

    def stop(self) -> None:
        """Let nothing fall due by itself any more."""
        with self._changed:
            self.stopped = True

    def resume(self) -> None:
        with self._changed:
            self.stopped = False
            if self._timers and self._thread is None:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="slotwise-timekeeper", daemon=True)
        # Refused while the interpreter shuts down, when no time is left to keep.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._timers:
                    self._thread = None
                    return
                delay = _LONGEST_NAP if self.stopped else self._timers[0][0] - now()
                if delay > 0:
                    self._changed.wait(min(delay, _LONGEST_NAP))
                    continue
                call = heappop(self._timers)[2]
            try:
                call()
            except Exception:
                # A bug, but other people's timers must ring all the same.
                logging.getLogger("slotwise").exception("a timer failed")
            del call  # a timer's owner is not kept alive until the next one rings

    def before_fork(self) -> None:
        """Let no other thread be in the middle of a change while the process is copied."""
        self._changed.acquire()

    def after_fork_in_parent(self) -> None:
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """The timers were copied, the thread was not."""
        self._changed = threading.Condition(threading.RLock())
        self._thread = None
        if self._timers and not self.stopped:
            self._start()


timekeeper = Timekeeper()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=timekeeper.before_fork,
        after_in_parent=timekeeper.after_fork_in_parent,
        after_in_child=timekeeper.after_fork_in_child,
    )
