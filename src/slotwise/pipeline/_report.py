"""Report: the counts of a run, readable at any time, and the exceptions that carry them.

The numbers are kept here and changed by the run alone; reading them costs the
run nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from slotwise._bounded.memory_guard import MemoryGuard, resident_memory
from slotwise.errors import SlotwiseError

# `rate_now` covers the latest whole span of this length, and the current one.
_SPAN = 1.0
FAILURES_KEPT = 100


class Report:
    """The counts of one run: live while it runs, final afterwards, even after a cancellation."""

    __slots__ = (
        "_busy",
        "_ended",
        "_guard",
        "_in_use",
        "_last_moved",
        "_limit",
        "_mark",
        "_own_peak",
        "_previous_mark",
        "_queue",
        "_started",
        "_waiting_since",
        "_waits",
        "back_pressure",
        "cancelled",
        "done",
        "failed",
        "failures",
        "in_flight",
        "started",
    )

    def __init__(self, limit: int, guard: MemoryGuard | None) -> None:
        self.done = 0
        """Items that succeeded."""
        self.failed = 0
        """Items whose function raised."""
        self.cancelled = 0
        """Items that were cancelled after they had started."""
        self.started = 0
        self.in_flight = 0
        """Items that are running now."""
        self.failures: list[tuple[Any, BaseException]] = []
        """With ``on_error="collect"``: the first 100 items that failed, and why."""
        self._limit = limit
        self._guard = guard
        self._queue: Callable[[], int] | None = None
        self._own_peak = 0
        self._busy = 0.0
        self._started: float | None = None
        self._ended: float | None = None
        self._last_moved = 0.0
        self._in_use = 0
        self._waits = 0.0
        self._waiting_since: float | None = None
        self._mark = self._previous_mark = (0.0, 0)

    # ------------------------------------------------------------- reading

    @property
    def queue_depth(self) -> int:
        """Items that wait to be started, and results that wait to be taken."""
        return 0 if self._queue is None else self._queue()

    @property
    def elapsed(self) -> float:
        """Seconds from the start to now, or to the end."""
        if self._started is None:
            return 0.0
        return self._now() - self._started

    @property
    def utilisation(self) -> float:
        """The share of the slots that was in use, on average since the start: 0 to 1."""
        elapsed = self.elapsed
        if not elapsed:
            return 0.0
        busy = self._busy + self._in_use * (self._now() - self._last_moved)
        return min(1.0, busy / (elapsed * self._limit))

    @property
    def rate(self) -> float:
        """Successes per second since the start."""
        elapsed = self.elapsed
        return self.done / elapsed if elapsed else 0.0

    @property
    def rate_now(self) -> float:
        """Successes per second during the last one or two seconds; 0 after the end."""
        if self._ended is not None or self._started is None:
            return 0.0
        now = self._now()
        mark = self._mark if now - self._mark[0] >= _SPAN else self._previous_mark
        return (self.done - mark[1]) / (now - mark[0]) if now > mark[0] else 0.0

    @property
    def memory(self) -> int:
        """Bytes in use: at the guard's last sample, or now if there is no guard."""
        if self._guard is not None:
            return self._guard.memory
        used = resident_memory()
        self._own_peak = max(self._own_peak, used)
        return used

    @property
    def peak_memory(self) -> int:
        """The largest `memory` so far."""
        if self._guard is not None:
            return self._guard.peak_memory
        return max(self.memory, self._own_peak)

    @property
    def back_pressure_seconds(self) -> float:
        """Seconds during which new work was held back by a slow consumer or by low memory."""
        if self._waiting_since is None:
            return self._waits
        return self._waits + self._now() - self._waiting_since

    def __repr__(self) -> str:
        return (
            f"<Report {self.done} done, {self.failed} failed, {self.in_flight} in flight,"
            f" {self.rate:.0f}/s>"
        )

    # ------------------------------------------------------ kept by the run

    def _now(self) -> float:
        return time.monotonic() if self._ended is None else self._ended

    def _begin(self) -> None:
        self._started = self._last_moved = time.monotonic()
        self._mark = self._previous_mark = (self._started, 0)

    def _moved(self, slots: int) -> None:
        """Count slots that were taken, or released (negative)."""
        now = time.monotonic()
        self._busy += self._in_use * (now - self._last_moved)
        self._last_moved = now
        self._in_use += slots
        if now - self._mark[0] >= _SPAN:
            self._previous_mark = self._mark
            self._mark = (now, self.done)

    def _hold_back(self) -> None:
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()

    def _go_on(self) -> None:
        if self._waiting_since is not None:
            self._waits += time.monotonic() - self._waiting_since
            self._waiting_since = None

    def _end(self) -> None:
        if self._ended is None:
            if self._started is None:
                self._begin()
            self._go_on()
            self._moved(0)
            self._ended = time.monotonic()


class MemoryLimitExceeded(SlotwiseError, MemoryError):
    """Memory rose above the guard's stop mark; items in flight were finished first."""

    report: Report | None = None


def not_an_end(error: BaseException) -> BaseException:
    """Return ``error``, or a RuntimeError instead of one that a loop would take for its end.

    As generators do since PEP 479: StopIteration from a called function is a bug in it, not the end
    of the source.
    """
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failure = RuntimeError(f"{type(error).__name__} was raised, which doesn't end the run")
    failure.__cause__ = error
    return failure
