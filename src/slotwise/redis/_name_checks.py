"""NameChecks: have the server serve the waiters of a name when time is up for somebody there.

A script replies in how many milliseconds the next holder or waiter of its name runs out of time.
At that moment nobody else may have a reason to call the server, so the processes of the waiters do.
The server decides what is over; `_heartbeat_thread` says when to look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from slotwise.errors import BackendError
from slotwise.redis._heartbeats import FAILED_CHECK_MS
from slotwise.redis._protocol import HEARTBEAT, heartbeat_call

if TYPE_CHECKING:
    from slotwise.redis._shared_client import NameRecord, SharedClient

# Not the random module's own: its seed belongs to others, and forked children share it.
_jitter = SystemRandom()

# How many seconds after the time that a script states a name is checked: not by all processes
# at once, and never too early.
_LEAST_JITTER, _MOST_JITTER = 0.002, 0.03

# The shortest time between two checks of one name.
_GRAIN = 0.02

# Where rates are waited for, the process of the first waiter checks exactly when there is enough
# for it. Other processes check this much later, unless they hear meanwhile of a grant there.
_GRACE = 0.05

# What a script replies while a foreign client holds slots, whose release wakes nobody; and how
# often waiters check for themselves then.
_FOREIGN_HOLDERS = -2
_FOREIGN_CHECK_INTERVAL = 0.1

# At most this many requests for several slots are named in a check; the first are served first.
_WIDE_PER_CHECK = 100


class NameChecks:
    """When to check which name that is waited for."""

    def __init__(
        self,
        shared: SharedClient,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        wake: Callable[[], None],
    ) -> None:
        """``wake`` is called when a check is due earlier."""
        self._shared = shared
        self._spawn = spawn
        self._wake = wake
        self._due: dict[NameRecord, float] = {}

    def schedule(self, record: NameRecord, ms: int) -> None:
        """Check a name in ``ms``, from any thread.

        Negative values have the meanings of next_end in lua/rules/ending.lua.
        """
        if ms == _FOREIGN_HOLDERS:
            self._due[record] = min(
                self._due.get(record, math.inf), time.monotonic() + _FOREIGN_CHECK_INTERVAL
            )
            self._wake()
        if ms < 0:
            return
        when = time.monotonic() + ms / 1000
        if record.has_rates and ms:  # 0: something is unfinished
            when += _GRACE
        latest = self._due.get(record, math.inf) - _GRAIN
        if when + _LEAST_JITTER >= latest:
            return  # as for most of many requests: the jitter is a system call
        when += _jitter.uniform(_LEAST_JITTER, _MOST_JITTER)
        if when < latest:
            self._due[record] = when
            self._wake()

    def is_scheduled(self, record: NameRecord) -> bool:
        return record in self._due

    def forget(self) -> None:
        self._due.clear()

    def run_due(self, now: float) -> float:
        """Start the checks that are due; return when the next one is."""
        for record, when in list(self._due.items()):
            if now < when:
                continue
            if now < record.attended_at + _GRACE:  # another process checks in time
                self._due[record] = record.attended_at + _GRACE
                continue
            del self._due[record]
            self._spawn(self._check(record))
        return min(list(self._due.values()), default=math.inf)

    async def _check(self, record: NameRecord) -> None:
        """Let the server end what is over on a name, and serve the next waiters."""
        waiters = [each for each in list(self._shared.waiters.values()) if each.record is record]
        if not waiters:
            return
        interval = waiters[0].interval
        # A foreign client may have granted only one slot to a request for several. Those requests
        # are named, so that they are queued again before anybody behind them is served.
        wide = [each for each in waiters if each.slots > 1 and each.queued]
        ids = [each.acquisition_id for each in wide if each.interval == interval][:_WIDE_PER_CHECK]
        keys, args = heartbeat_call(self._shared, b"", [(record, interval, (), ids)])
        try:
            client = self._shared.client()
            [[due, *outcomes]] = await client.run(HEARTBEAT, keys, args, record.keys.slot)
        except BackendError:
            return  # the next heartbeat asks again
        if outcomes and outcomes[0].startswith(b"failed "):  # heartbeats report that
            self.schedule(record, FAILED_CHECK_MS)
            return
        self._shared.dispatch_all(outcomes, record, client)
        self.schedule(record, due)
