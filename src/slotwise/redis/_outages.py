"""Outages: one WARNING when a server stops answering, and one when it is back.

They are counted per server and process, however many loops, names and heartbeats
notice. Nothing here decides what a caller gets; that is raised to the caller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from slotwise._core import events, fork
from slotwise.redis._diagnosis import logger

# Replies that were on their way when a connection broke may still be read this much later.
_UNDER_WAY = 1.0


class _Outage:
    __slots__ = ("broken", "noticed_at", "since")

    def __init__(self, *, broken: bool) -> None:
        self.noticed_at = self.since = time.monotonic()
        self.broken = broken  # else the server is only silent


_lock = fork.new_lock()

# By server, as messages name it. Changed under the lock, read without it.
ongoing: dict[str, _Outage] = {}

# By server: when its last outage ended.
_ended_at: dict[str, float] = {}

# By server: whom to tell when something is wrong with it, in any thread.
listeners: dict[str, set[Callable[[], object]]] = {}


def begin(
    server: str,
    error: BaseException,
    *,
    broken: bool,
    ago: float = 0.0,
    asked_at: float = math.inf,
) -> None:
    """Note that ``server`` does not answer; the first to notice logs it.

    Args:
        server: as messages name it.
        error: what the caller noticed.
        broken: whether a connection is gone, or can't be opened.
        ago: for how many seconds it has been known to be silent.
        asked_at: when it was asked what failed now, by somebody who asks again. If that was before
            the last outage ended, it failed because of that one, and is noticed late.
    """
    with _lock:
        outage = ongoing.get(server)
        is_new = outage is None and asked_at >= _ended_at.get(server, -math.inf)
        if is_new:
            outage = ongoing[server] = _Outage(broken=broken)
        if outage is not None:
            outage.broken = outage.broken or broken
            outage.since = min(outage.since, time.monotonic() - ago)
    if is_new:
        logger.warning("%s (trying again; releases continue in the background)", error)
        if events.hooks:
            events.unreachable(server, str(error))
    for listener in list(listeners.get(server, ())):
        listener()


def answered(server: str) -> None:
    """Note a reply; called while there is any outage."""
    recent = time.monotonic() - _UNDER_WAY
    _end_if(server, lambda outage: not outage.broken or outage.noticed_at <= recent)


def end(server: str, asked_at: float) -> None:
    """Note that ``server`` answers what it was asked at ``asked_at``.

    An answer to what it was asked before the outage was noticed may be older than the outage.
    """
    _end_if(server, lambda outage: outage.noticed_at <= asked_at)


def _end_if(server: str, is_over: Callable[[_Outage], bool]) -> None:
    with _lock:
        outage = ongoing.get(server)
        if outage is None or not is_over(outage):
            return
        del ongoing[server]
        now = _ended_at[server] = time.monotonic()
    logger.warning("%s is back after %.1f s", server, now - outage.since)
    if events.hooks:
        events.back(server, now - outage.since)
