"""Refusals over HTTP: the status, the fields and the body for a request that gets no slot.

They are the same for every web framework. The field names and problem types are those of the IETF's
draft "RateLimit header fields for HTTP". Nothing here sends anything.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from slotwise._core.limit import Limit
from slotwise._core.paths import PathStats
from slotwise._core.rates import Rate
from slotwise._core.semaphore import Semaphore
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


async def refusal_of(limit: Limit, error: Exception | None, mean_hold: float | None) -> Refusal:
    """Return the answer to a request that got no slot of ``limit`` because of ``error``, if any.

    ``mean_hold`` is how long requests hold their slots, in seconds.

    Raises:
        UNUSABLE: the limit doesn't say.
    """
    estimate = error.estimate if isinstance(error, LimitFull) else None
    if estimate is None:
        estimate = await limit.estimate()
    if isinstance(limit, PathLimit):
        stats = await limit._tiers._backend.stats_of(limit._path)
        policies = _lacking_tiers(limit, stats)
        waiting = stats.tightest().waiting
    else:
        policies = [_policy_of(limit)]
        waiting = (await limit.stats()).waiting if estimate is None else 0
    of_slots = [policy.quota for policy in policies if policy.window is None]
    if estimate is None and mean_hold is not None and of_slots:  # holders leave one by one
        estimate = mean_hold * (waiting + 1) / max(min(of_slots), 1)
    seconds = max(math.ceil(estimate or 0), 1)
    of_client = any(policy.of_client for policy in policies)
    return Refusal(
        429 if of_client else 503,
        seconds,
        f"no slot is free: try again in about {seconds} s",
        tuple(policies),
    )


def unavailable(error: Exception) -> Refusal:
    """Return the answer where the limit can't be used."""
    if isinstance(error, SemaphoreClosed):
        return Refusal(503, 1, "the service is closed for the moment")
    if isinstance(error, ValueConflict):
        return Refusal(503, 1, "the limit of this service can't be used for the moment")
    return Refusal(503, 1, "the limit of this service can't be reached")


def draining() -> Refusal:
    """Return the answer to a request that waited when the server began to shut down."""
    return Refusal(503, 1, "this server is shutting down")


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
