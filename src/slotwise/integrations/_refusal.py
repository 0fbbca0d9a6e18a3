"""Refusals over HTTP: the status, the fields and the body for a request that gets no slot.

They are the same for every web framework. The field names and problem types are those of the IETF's
draft "RateLimit header fields for HTTP". Nothing here sends anything.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from slotwise._core.limit import Limit
from slotwise._core.paths import PathStats
from slotwise._core.rates import Rate
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock
from slotwise.errors import BackendError, LimitFull, SemaphoreClosed, ValueConflict
from slotwise.tiers._path_limit import PathLimit
from slotwise.tiers._rate_limit import RateLimit

_PROBLEM = "https://iana.org/assignments/http-problem-types#"
_KINDS = {
    429: ("quota-exceeded", "The quota for these requests is exceeded"),
    503: ("temporary-reduced-capacity", "The service is at its limit for the moment"),
}
# Errors of a limit that say nothing about how full it is.
UNUSABLE = (BackendError, SemaphoreClosed, ValueConflict)
# How often an operator is told of them, in seconds.
_LOG_EVERY = 60.0
logger = logging.getLogger("slotwise.integrations")
# What a quoted string of a header field may contain, except for the percent sign itself.
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in '%"\\')


@dataclass(frozen=True, slots=True)
class Policy:
    """One limit that a request didn't fit into.

    ``window`` is the seconds of a rate; None for concurrent requests. ``of_client`` says whether
    it is the client that asks for too much, and not all of them together.
    """

    name: str
    quota: int
    window: int | None = None
    of_client: bool = False

    @property
    def quoted_name(self) -> str:
        return f'"{quote(self.name, safe=_PRINTABLE)}"'

    @property
    def field(self) -> str:
        """As ``RateLimit-Policy`` states it."""
        measure = 'qu="concurrent-requests"' if self.window is None else f"w={self.window}"
        return f"{self.quoted_name};q={self.quota};{measure}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What to answer to a request that got no slot."""

    status: int
    retry_after: int
    detail: str
    policies: tuple[Policy, ...] = ()

    @property
    def fields(self) -> dict[str, str]:
        """The header fields of the response, except for those of its body."""
        fields = {"Retry-After": str(self.retry_after)}
        if self.policies:
            fields["RateLimit-Policy"] = ", ".join(policy.field for policy in self.policies)
            fields["RateLimit"] = ", ".join(f"{policy.quoted_name};r=0" for policy in self.policies)
        return fields

    @property
    def problem(self) -> dict[str, Any]:
        """The members of the ``application/problem+json`` body."""
        kind, title = _KINDS[self.status]
        return {
            "type": _PROBLEM + kind,
            "title": title,
            "status": self.status,
            "detail": self.detail,
            "violated-policies": [policy.name for policy in self.policies],
        }

    @property
    def body(self) -> bytes:
        return json.dumps(self.problem).encode()

    @property
    def all_fields(self) -> dict[str, str]:
        """The header fields of the response with `body`."""
        return {
            "Content-Type": "application/problem+json",
            "Content-Length": str(len(self.body)),
            **self.fields,
        }


class RequestTimes:
    """How long an adapter's own requests hold their slots, on average, the latest counting most.

    Limits time holds only while somebody waits; where nobody may wait, this is what is known.
    """

    __slots__ = ("_mean",)

    def __init__(self) -> None:
        self._mean: float | None = None

    def add(self, seconds: float) -> None:
        mean = self._mean
        self._mean = seconds if mean is None else mean + (seconds - mean) / 8

    def estimate(self, value: int, waiting: int) -> float | None:
        """Return in how many seconds a newcomer would be served: holders leave one by one."""
        if self._mean is None:
            return None
        return self._mean * (waiting + 1) / max(value, 1)


class Troubles:
    """Logs what an operator has to fix: limits that can't be reached or used as they are.

    All requests meet it, so it is logged at most once a minute.
    """

    __slots__ = ("_logged_at", "_unlogged")

    def __init__(self) -> None:
        self._logged_at = -math.inf
        self._unlogged = 0

    def note(self, error: Exception | None) -> None:
        if not isinstance(error, BackendError | ValueConflict):
            return
        now = clock.now()
        if now - self._logged_at < _LOG_EVERY:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more requests since the last time)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        logger.error("a request got no slot: %s%s", error, more)


async def refusal_of(
    limit: Limit, error: Exception | None, times: RequestTimes, troubles: Troubles
) -> Refusal:
    """Return the answer to a request that got no slot of ``limit`` because of ``error``, if any."""
    if isinstance(error, UNUSABLE):
        return _unavailable(error, troubles)
    try:
        estimate = _estimate_in(error)
        if estimate is None:
            estimate = await limit.estimate()
        if isinstance(limit, PathLimit):
            stats = await limit._tiers._backend.stats_of(limit._path)
            return _refusal(_lacking_tiers(limit, stats), estimate, times, stats.tightest().waiting)
        waiting = (await limit.stats()).waiting if estimate is None else 0
    except UNUSABLE as trouble:
        return _unavailable(trouble, troubles)
    return _refusal([_policy_of(limit)], estimate, times, waiting)


def draining() -> Refusal:
    """Return the answer to a request that waited when the server began to shut down."""
    return Refusal(503, 1, "this server is shutting down")


def _unavailable(error: Exception, troubles: Troubles) -> Refusal:
    # Its message may name a server, which clients should not see.
    troubles.note(error)
    if isinstance(error, SemaphoreClosed):
        return Refusal(503, 1, "the service is closed for the moment")
    if isinstance(error, ValueConflict):
        return Refusal(503, 1, "the limit of this service can't be used for the moment")
    return Refusal(503, 1, "the limit of this service can't be reached")


def _estimate_in(error: Exception | None) -> float | None:
    return error.estimate if isinstance(error, LimitFull) else None


def _refusal(
    policies: Iterable[Policy], estimate: float | None, times: RequestTimes, waiting: int
) -> Refusal:
    policies = tuple(policies)
    if estimate is None:
        of_slots = [policy.quota for policy in policies if policy.window is None]
        estimate = times.estimate(min(of_slots), waiting) if of_slots else None
    seconds = max(math.ceil(estimate or 0), 1)
    of_client = any(policy.of_client for policy in policies)
    return Refusal(
        429 if of_client else 503,
        seconds,
        f"no slot is free: try again in about {seconds} s",
        policies,
    )


def _policy_of(limit: Limit) -> Policy:
    if isinstance(limit, RateLimit):
        return _rate_policy(limit.name or "rate", limit.rate)
    if isinstance(limit, Semaphore):
        return Policy(limit.name or "limit", limit.value)
    return Policy(limit._title, limit.stats_sync().max_slots)


def _rate_policy(name: str, rate: Rate) -> Policy:
    window = max(math.ceil(rate.per), 1)  # the draft has only whole seconds
    return Policy(name, int(rate.count * window / rate.per), window, of_client=True)


def _lacking_tiers(limit: PathLimit, stats: PathStats) -> list[Policy]:
    """The tiers that a newcomer lacks now; the tightest one if it lacks none any more."""
    tiers = limit._tiers.tiers
    needs = limit._needs or (1,) * len(tiers)
    limited = [each for each in zip(tiers, stats.nodes, needs, strict=True) if each[1].value]
    found = [
        (tier, node) for tier, node, need in limited if node.active + node.kept + need > node.value
    ]
    if not found:
        found = [(tier, node) for tier, node, _ in limited]
        found = sorted(found, key=lambda each: each[1].value - each[1].active)[:1]
    return [
        Policy(tier.name, node.value, of_client=bool(tier.keyed))
        if tier.rate is None
        else _rate_policy(tier.name, tier.rate)
        for tier, node in found
    ]
