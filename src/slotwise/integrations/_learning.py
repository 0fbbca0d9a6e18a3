"""Learning: slow down when the responses of a server ask for it.

A response with status 429 or 503 and ``Retry-After`` pauses the limit of the request. Whatever goes
wrong with that is logged, and never reaches the caller.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime

from slotwise._core.arguments import MOST_SECONDS, check_flag, check_seconds
from slotwise._core.limit import EXIT_LIMIT, Limit
from slotwise.integrations._admission import RequestSlot, logger

_REFUSALS = (429, 503)

# Returns the values of a header field of the response, in lower case, one for each line.
Fields = Callable[[str], Sequence[str]]


class Learning:
    """Applies what responses say to limits, if it is to ``learn``; one for each transport."""

    def __init__(self, learn: bool, max_pause: float | None) -> None:
        self._is_on = check_flag("learn", learn)
        seconds = check_seconds("max_pause", max_pause)
        self._max_pause = MOST_SECONDS if seconds is None else seconds
        self._has_failed = False
        self._tasks: set[asyncio.Task[None]] = set()  # an event loop keeps no reference to them

    async def learn(self, held: RequestSlot, status: int, fields: Fields) -> None:
        """Learn from a response, before its slot is released; it raises nothing of its own.

        The limit's server has half a second to answer; the rest happens in the background.
        """
        seconds, limit = self._pause_for(held, status, fields), held.limit
        if seconds is None or limit is None:
            return
        if not limit._does_io:
            self._pause_sync(limit, seconds, status)
            return
        task = asyncio.get_running_loop().create_task(self._pause(limit, seconds, status))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait((task,), timeout=EXIT_LIMIT)

    def learn_sync(self, held: RequestSlot, status: int, fields: Fields) -> None:
        """Like `learn`."""
        seconds, limit = self._pause_for(held, status, fields), held.limit
        if seconds is not None and limit is not None:
            asked = limit, seconds, status
            thread = threading.Thread(target=self._pause_sync, args=asked, daemon=True)
            thread.start()
            thread.join(EXIT_LIMIT)

    def _pause_for(self, held: RequestSlot, status: int, fields: Fields) -> float | None:
        """Return for how long to pause; an adaptive limit is told of the refusal instead."""
        acquired = held.acquired
        if acquired is None or not self._is_on or status not in _REFUSALS:
            return None
        seconds = read_retry_after(fields)
        if seconds is not None:
            seconds = min(seconds, self._max_pause)
        if acquired._outcomes is None:
            return seconds
        acquired.dropped(retry_after=seconds)
        return None

    async def _pause(self, limit: Limit, seconds: float, status: int) -> None:
        with self._told(limit, seconds, status):
            await limit.pause(seconds)

    def _pause_sync(self, limit: Limit, seconds: float, status: int) -> None:
        with self._told(limit, seconds, status):
            limit.pause_sync(seconds)

    @contextmanager
    def _told(self, limit: Limit, seconds: float, status: int) -> Iterator[None]:
        """Log what the block does; or that it failed, once until it succeeds."""
        what = f"pausing {limit._title} for {seconds:g} s"
        try:
            yield
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning("%s failed: %s", what, error)
        else:
            self._has_failed = False
            logger.info("%s, as a response with status %d asked for", what, status)


def read_retry_after(fields: Fields) -> float | None:
    """Return the seconds of ``Retry-After``, a number or a date; None if it isn't in the future."""
    values, dates = fields("retry-after"), fields("date")
    if len(values) != 1:
        return None
    text = values[0].strip()
    if re.fullmatch(r"[0-9]+", text):
        return float(text) or None
    until = _timestamp(text)
    if until is None:
        return None
    # By the server's own clock, if it says what that is.
    sent = _timestamp(dates[0].strip()) if len(dates) == 1 else None
    seconds = until - (time.time() if sent is None else sent)
    return seconds if seconds > 0 else None


def _timestamp(text: str) -> float | None:
    """Return the time of an HTTP date."""
    try:
        found = parsedate_to_datetime(text)
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return found.timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
