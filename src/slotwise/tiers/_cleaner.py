"""Cleaner: work in the background at an interval, stopped and waited for by its owner.

It is a timer, not a task: it needs no event loop, and FakeClock moves it.
"""

from __future__ import annotations

from collections.abc import Callable

from slotwise._core import fork
from slotwise._wait import clock


class Cleaner:
    """Calls ``work`` every ``interval`` seconds, in the thread of the timers."""

    def __init__(self, interval: float, work: Callable[[], object]) -> None:
        self._interval = interval
        self._work = work
        self._stopped = False
        self._at_work = fork.new_lock()
        self._set()

    def _set(self) -> None:
        clock.timekeeper.call_at(clock.now() + self._interval, self._ring)

    def _ring(self, _when: float) -> None:
        with self._at_work:
            if self._stopped:
                return
            try:
                self._work()
            finally:
                self._set()

    def stop(self) -> None:
        """Return when nothing runs, and nothing will."""
        self._stopped = True
        with self._at_work:
            pass
