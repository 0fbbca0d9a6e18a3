"""Backlog: the calls that wait for a connection, each for as long as its own limits allow.

The owner says when an attempt to connect begins and when it has failed. An attempt may take
longer than a caller's ``connect_timeout``, and the next one may come sooner than a caller's
backoff. A failure counts against a call only if the call would have had it on its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator

from slotwise.errors import BackendError
from slotwise.redis._call_limits import CallLimits, ServerSettings
from slotwise.redis._net.call import Call

# Added to each connect_timeout: the thread that opens the connection may start late.
_GRACE = 0.1
_MANY = 1_000_000
# The shortest time between two checks of the calls.
_GRAIN = 0.05


class Backlog:
    """Calls in the order in which they were made, in the thread of their event loop."""

    # Between any two ticks:
    #   B1  during an attempt, a timer fires when the first call with a connect_timeout shorter
    #       than the attempt's has waited for that long

    def __init__(
        self,
        settings: ServerSettings,
        loop: asyncio.AbstractEventLoop,
        on_overdue: Callable[[float], BackendError],
    ) -> None:
        self._settings = settings
        self._loop = loop
        # Called with the seconds that a call has waited in vain; returns its error.
        self._on_overdue = on_overdue
        self._calls: dict[Call, None] = {}  # in order, and any can be withdrawn at once
        self._attempting = False
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def limits_of(self, call: Call) -> CallLimits:
        return call.limits or self._settings.config.limits

    def is_exhausted(self, call: Call, more: int = 0) -> bool:
        """Whether a call has failed ``attempts`` + ``more`` times."""
        return not call.patient and call.tries >= self.limits_of(call).attempts + more

    def add(self, call: Call) -> None:
        call.waits_since = time.monotonic()
        self._calls[call] = None
        if self._attempting:
            self._ring_by(self._overdue_at(call))

    def put_first(self, calls: list[Call]) -> None:
        """Add calls that were made before all others, including exhausted ones."""
        now = time.monotonic()
        for call in calls:
            call.waits_since = now
        self._calls = dict.fromkeys(calls) | self._calls

    def withdraw(self, call: Call) -> bool:
        """Remove a call that was not sent; return whether it was here."""
        if not call.sent and call in self._calls:
            del self._calls[call]
            return True
        return False

    def take(self) -> list[Call]:
        """Remove and return all calls, to be sent or failed."""
        self._stop_timer()
        calls, self._calls = self._calls, {}
        return list(calls)

    def take_exhausted(self) -> list[Call]:
        exhausted = [call for call in self._calls if self.is_exhausted(call)]
        if exhausted:
            for call in exhausted:
                del self._calls[call]
        return exhausted

    # -------------------------------------------------------------- attempts

    def begin_attempt(self) -> None:
        """Note that a connection is being opened from now on."""
        self._attempting = True
        now = time.monotonic()
        for call in self._calls:
            call.waits_since = now
        self._set_timer()

    def end_attempt(self) -> None:
        """Note that a connection was opened, or that no more attempts are made."""
        self._attempting = False
        self._stop_timer()

    def fail_attempt(
        self, error: BackendError, failures: int = _MANY, *, hopeless: bool = False
    ) -> None:
        """Count a failed attempt, the last of ``failures`` in a row; fail the exhausted calls.

        If it is ``hopeless``, all calls fail.
        """
        self.end_attempt()
        for call in self._calls:
            self.count_failure(call, failures)
        failed = self.take() if hopeless else self.take_exhausted()
        for call in failed:
            call.on_done(call, error)

    def count_failure(self, call: Call, failures: int = _MANY) -> None:
        """Count a failure of a call, unless its own backoff would not have let it try so soon.

        Its next backoff follows from its own failures, or from ``failures`` if those are fewer.
        """
        now = time.monotonic()
        if now >= call.paused_until:
            call.tries += 1
            # Half: the least that jitter leaves of a backoff.
            pause = self.limits_of(call).pause(min(call.tries, failures)) / 2
            call.paused_until = now + pause

    # ----------------------------------------------------------------- timer

    def _overdue_at(self, call: Call) -> float:
        timeout = self.limits_of(call).connect_timeout
        if timeout >= self._settings.config.connect_timeout:
            return math.inf  # the attempt ends sooner, and with a better message
        return max(call.waits_since, call.paused_until) + timeout + _GRACE

    def _set_timer(self) -> None:
        self._stop_timer()
        self._ring_by(min(map(self._overdue_at, self._calls), default=math.inf))

    def _ring_by(self, overdue_at: float) -> None:
        """Check the calls when one is overdue, unless a check comes sooner anyway."""
        if overdue_at < self._rings_at:
            self._stop_timer()
            self._rings_at = overdue_at
            wait = max(overdue_at - time.monotonic(), _GRAIN)
            self._timer = self._loop.call_later(wait, self._ring)

    def _stop_timer(self) -> None:
        self._rings_at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        """Count the attempt as failed for the calls whose connect_timeout is over."""
        self._stop_timer()
        now = time.monotonic()
        overdue = [call for call in self._calls if self._overdue_at(call) <= now]
        if overdue:
            waited = max(now - call.waits_since for call in overdue)
            error = self._on_overdue(waited)
            for call in overdue:
                self.count_failure(call)
            for call in self.take_exhausted():
                call.on_done(call, error)
        self._set_timer()
