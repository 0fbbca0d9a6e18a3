"""Learning: slow down when the responses of a server ask for it.

A response with status 429 or 503 and ``Retry-After`` pauses the limit of the request, and a
``RateLimit-Policy`` that counts concurrent requests lowers it. Whatever goes wrong with that is
logged, and never reaches the caller.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import MOST_SECONDS, check_flag, check_seconds
from slotwise._core.limit import EXIT_LIMIT, Limit
from slotwise._core.rates import Rate
from slotwise._core.semaphore import Semaphore
from slotwise.integrations._admission import RequestSlot, logger
from slotwise.tiers._path_limit import PathLimit

_REFUSALS = (429, 503)
# The quotas of this many keys are remembered, so that each is written once, not by every response.
_REMEMBERED_KEYS = 10_000

# Returns the values of a header field of the response, in lower case, one for each line.
Fields = Callable[[str], Sequence[str]]


class Lesson(NamedTuple):
    """What a response says about the limit of its request."""

    status: int
    retry_after: float | None  # seconds
    quota: int | None  # how many requests may be under way at once

    @property
    def is_refusal(self) -> bool:
        return self.status in _REFUSALS


class _LimitCall(NamedTuple):
    """A verb of a limit or of tiers, to be called with arguments."""

    target: Any
    verb: str
    args: tuple[Any, ...]
    lesson: Lesson
    quota_of: object = None  # under which key its value is remembered

    def __str__(self) -> str:
        title = getattr(self.target, "_title", None) or repr(self.target)
        if self.verb == "pause":
            return f"pausing {title} for {self.args[0]:g} s"
        which = "" if len(self.args) == 1 else f" ({' '.join(map(str, self.args[::2]))})"
        return f"changing the value of {title}{which} to {self.args[-2 if which else 0]}"


class Learning:
    """Applies what responses say to limits, if it is to ``learn``; one for each transport."""

    def __init__(self, learn: bool, max_pause: float | None) -> None:
        self._is_on = check_flag("learn", learn)
        seconds = check_seconds("max_pause", max_pause)
        self._max_pause = MOST_SECONDS if seconds is None else seconds
        self._quotas: OrderedDict[object, int] = OrderedDict()
        self._has_failed = False
        self._tasks: set[asyncio.Task[None]] = set()  # an event loop keeps no reference to them

    async def learn(self, held: RequestSlot, status: int, fields: Fields) -> None:
        """Learn from a response, before its slot is released; it raises nothing of its own.

        The limit's server has half a second to answer; the rest happens in the background.
        """
        calls = self._calls(held, status, fields)
        if held.limit is None or not held.limit._does_io:
            self._make(calls)
        elif calls:
            task = asyncio.get_running_loop().create_task(self._make_async(calls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.wait((task,), timeout=EXIT_LIMIT)

    def learn_sync(self, held: RequestSlot, status: int, fields: Fields) -> None:
        """Like `learn`."""
        calls = self._calls(held, status, fields)
        if held.limit is None or not held.limit._does_io:
            self._make(calls)
        elif calls:
            thread = threading.Thread(target=self._make, args=(calls,), daemon=True)
            thread.start()
            thread.join(EXIT_LIMIT)

    # ------------------------------------------------------------- what to do

    def _calls(self, held: RequestSlot, status: int, fields: Fields) -> list[_LimitCall]:
        """Return what has to be called; an adaptive limit is told how the request ended instead."""
        limit, acquired = held.limit, held.acquired
        calls: list[_LimitCall] = []
        if limit is None or acquired is None or not self._is_on:
            return calls
        try:
            lesson = read_lesson(status, fields, self._max_pause)
            if acquired._outcomes is not None:
                if lesson.is_refusal:
                    acquired.dropped(retry_after=lesson.retry_after)
                return []
            if lesson.retry_after is not None:
                calls.append(_LimitCall(limit, "pause", (lesson.retry_after,), lesson))
            if lesson.quota is not None:
                calls += self._resizes(limit, lesson.quota, lesson)
        except Exception as error:  # such as one from the user's function of a key
            self._failed("learning from a response", error)
        return calls

    def _resizes(self, limit: Limit, quota: int, lesson: Lesson) -> list[_LimitCall]:
        """Return the call that gives a limit the smaller of the quota and its own value."""
        if isinstance(limit, Semaphore):
            own = limit._arguments().get("value")
            if isinstance(own, Adaptive) or not own:
                return []
            value = min(quota, own)
            return [] if value == limit.value else [_LimitCall(limit, "resize", (value,), lesson)]
        if not isinstance(limit, PathLimit):
            return []  # what has no slots has no quota of concurrent requests
        found = _tier_of_quota(limit)
        if found is None:
            return []
        name, key, own = found
        value = min(quota, own) if own else quota
        which = (id(limit.tiers), name, key)
        if self._quotas.get(which, own) == value:
            return []
        self._quotas[which] = value
        if len(self._quotas) > _REMEMBERED_KEYS:
            self._quotas.popitem(last=False)
        return [_LimitCall(limit.tiers, "resize", (name, value, key), lesson, which)]

    # ------------------------------------------------------------------ doing

    async def _make_async(self, calls: list[_LimitCall]) -> None:
        for call in calls:
            with self._told(call):
                await getattr(call.target, call.verb)(*call.args)

    def _make(self, calls: list[_LimitCall]) -> None:
        for call in calls:
            with self._told(call):
                getattr(call.target, f"{call.verb}_sync")(*call.args)

    @contextmanager
    def _told(self, call: _LimitCall) -> Iterator[None]:
        """Log what the block does, or that it failed."""
        try:
            yield
        except Exception as error:
            self._quotas.pop(call.quota_of, None)
            self._failed(str(call), error)
        else:
            self._has_failed = False
            logger.info("%s, as a response with status %d asked for", call, call.lesson.status)

    def _failed(self, what: str, error: Exception) -> None:
        """Log it, once until something succeeds: there may be very many responses."""
        if not self._has_failed:
            self._has_failed = True
            logger.warning("%s failed: %s", what, error)


def _tier_of_quota(limit: PathLimit) -> tuple[str, str | None, int] | None:
    """Return the tier that a quota of concurrent requests applies to, its key, and its value.

    Like a pause, it applies to the narrowest tier with a key, if its number of slots is fixed.
    """
    specs = [tier.spec for tier in limit.tiers._tiers.values()]
    with_slots = [
        (spec, key)
        for spec, key in zip(specs, limit._path, strict=True)
        if not isinstance(spec.value, Rate) and spec.adaptive is None
    ]
    keyed = [(spec, key) for spec, key in with_slots if key is not None]
    for spec, key in keyed or with_slots:
        own = spec.ask(key) if spec.by_key and key is not None else spec.value
        assert isinstance(own, int)
        return spec.name, key, own
    return None


# --------------------------------------------------------------------- reading


def read_lesson(status: int, fields: Fields, max_pause: float = float("inf")) -> Lesson:
    """Read a response; malformed header fields are ignored."""
    retry_after = None
    if status in _REFUSALS:
        retry_after = _read_retry_after(fields("retry-after"), fields("date"))
        if retry_after is not None:
            retry_after = min(retry_after, max_pause)
    return Lesson(status, retry_after, read_quota(", ".join(fields("ratelimit-policy"))))


def _read_retry_after(values: Sequence[str], dates: Sequence[str]) -> float | None:
    """Return the seconds of ``Retry-After``, a number or a date; None if it isn't in the future."""
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


_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_WORD = r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
_BARE_ITEM = rf"(?:{_STRING}|{_WORD}|-?[0-9]{{1,15}}(?:\.[0-9]{{1,3}})?|\?[01]|:[A-Za-z0-9+/=]*:)"
_PARAMETER = rf"; *(?:[a-z*][a-z0-9_.*-]*)(?:={_BARE_ITEM})?"
_ITEM = rf"{_BARE_ITEM}((?:{_PARAMETER})*)"
_LIST = re.compile(rf"{_ITEM}(?:[ \t]*,[ \t]*{_ITEM})*")
_ONE_ITEM = re.compile(rf"{_ITEM}(?:[ \t]*,[ \t]*|$)")
_ONE_PARAMETER = re.compile(rf"; *([a-z*][a-z0-9_.*-]*)(?:=({_BARE_ITEM}))?")


def read_quota(text: str) -> int | None:
    """Return the smallest quota of concurrent requests in a ``RateLimit-Policy``, if there is one.

    It is a list of structured fields; one that is not is ignored as a whole.
    """
    text = text.strip(" ")
    quotas: list[int] = []
    for item in _ONE_ITEM.finditer(text) if _LIST.fullmatch(text) else ():
        parameters = dict(_ONE_PARAMETER.findall(item[1]))
        quota = parameters.get("q", "")
        if parameters.get("qu", "").strip('"') == "concurrent-requests" and quota.isdecimal():
            quotas += [int(quota)] if int(quota) >= 1 else []
    return min(quotas, default=None)
