"""Admission: which requests a web framework lets in, and the slot that each of them holds.

It is the same for every framework: each says when a response is closed, and sends the refusals. The
field names and problem types of these are those of the IETF's draft "RateLimit header fields for
HTTP". `_asgi_exchange` waits in line while it watches the client.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from slotwise._core.arguments import check_flag, check_seconds
from slotwise._core.limit import Limit
from slotwise._core.paths import PathStats
from slotwise._core.rates import Rate
from slotwise._core.redaction import redacted_repr
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock
from slotwise.errors import AcquireTimeout, BackendError, LimitFull, SemaphoreClosed, ValueConflict
from slotwise.integrations._source import KeyFunction, LimitArgument, limit_finder
from slotwise.tiers._path_limit import PathLimit
from slotwise.tiers._rate_limit import RateLimit

# Paths that middlewares never limit: a service that is full is still healthy.
EXEMPT = ("/healthz", "/livez", "/readyz", "/metrics")
# Errors of a limit that say nothing about how full it is.
UNUSABLE = (BackendError, SemaphoreClosed, ValueConflict)
# What a limit says to a request that gets no slot.
NO_SLOT = (AcquireTimeout, LimitFull, *UNUSABLE)
# How often an operator is told of limits that can't be reached or used as they are, in seconds.
_LOG_EVERY = 60.0
logger = logging.getLogger("slotwise.integrations")


def exempt_paths(given: Collection[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise TypeError(f"exempt must be a collection of paths, not the str {redacted_repr(given)}")
    return frozenset(given)


class RequestSlot:
    """A slot until `close`, or `close_async`, is called; calling it again does no harm.

    Without an acquisition it is that of a request that is not limited. A framework that drops a
    response without closing it has its slot released when the response is garbage-collected.
    """

    __slots__ = ("__weakref__", "_admission", "_granted_at", "acquired", "limit")

    def __init__(
        self,
        limit: Limit | None = None,
        acquired: AcquisitionResult | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.limit = limit
        self.acquired = acquired
        self._admission = admission
        self._granted_at = time.monotonic()

    def close(self) -> None:
        acquired = self._taken()
        if acquired is not None and self.limit is not None:
            self.limit._release_on_exit_sync(acquired)

    async def close_async(self) -> None:
        acquired = self._taken()
        if acquired is not None and self.limit is not None:
            await self.limit._release_on_exit(acquired)

    def leave_with(self, error: BaseException, alike: type[BaseException] | None = None) -> None:
        """Tell an adaptive limit how the work ended: by an error, or by one that counts as a drop.

        Clients have timeouts of their own, which are not a TimeoutError: they are ``alike``.
        """
        acquired = self.acquired
        if acquired is not None:
            drop_on = () if acquired._outcomes is None else acquired._outcomes.options.drop_on
            is_alike = alike is not None and issubclass(alike, drop_on)
            acquired._leave_with(alike if is_alike else type(error))

    def _taken(self) -> AcquisitionResult | None:
        acquired, self.acquired = self.acquired, None
        if acquired is not None and self._admission is not None:
            self._admission.add_hold(time.monotonic() - self._granted_at)
        return acquired

    def __del__(self) -> None:
        self.close()


class Admission:
    """Lets requests in, or tells how to refuse them.

    Args:
        limit: a Limit; or a function of the request that returns one, or None for unlimited; or
            Tiers, with ``key``.
        key: a function of the request that returns the keys for `Tiers.at`; None for unlimited.
        wait: how long a request may wait for a slot, in seconds; None forever.
        observe: let requests without a slot in too, and count them in ``would_refuse``.
    """

    def __init__(
        self,
        limit: LimitArgument,
        key: KeyFunction | None,
        wait: float | None,
        *,
        observe: bool = False,
    ) -> None:
        self.find = limit_finder(limit, key)
        self.observe = check_flag("observe", observe)
        self.wait = 0.0 if observe else check_seconds("wait", wait, zero=True)
        self.refused = 0
        self.would_refuse = 0
        # How long these requests hold their slots, on average, the latest counting most. Limits
        # time holds only while somebody waits; where nobody may wait, this is what is known.
        self._mean: float | None = None
        self._logged_at = -math.inf
        self._unlogged = 0

    async def enter(self, request: Any) -> RequestSlot | Refusal:
        limit, no_slot = self.find(request), None
        if limit is None:
            return RequestSlot()
        try:
            wait = self.wait
            acquired = await (limit.acquire(timeout=wait) if wait != 0 else limit.try_acquire())
            if acquired is not None:
                return RequestSlot(limit, acquired, self)
        except NO_SLOT as error:
            no_slot = error
        return await self.refusal(limit, no_slot) or RequestSlot()

    def enter_sync(self, request: Any) -> RequestSlot | Refusal:
        limit, no_slot = self.find(request), None
        if limit is None:
            return RequestSlot()
        try:
            wait = self.wait
            acquired = limit.acquire_sync(timeout=wait) if wait != 0 else limit.try_acquire_sync()
            if acquired is not None:
                return RequestSlot(limit, acquired, self)
        except NO_SLOT as error:
            no_slot = error
        return limit._run(partial(self.refusal, limit, no_slot)) or RequestSlot()

    def hold(
        self,
        request: Any,
        respond: Callable[[], Any],
        refuse: Callable[[Refusal], Any],
        attach: Callable[[Any, RequestSlot], Any],
    ) -> Any:
        """Return the response to a request, which `attach` lets release the slot when it closes."""
        entered = self.enter_sync(request)
        if isinstance(entered, Refusal):
            return refuse(entered)
        try:
            return attach(respond(), entered)
        except BaseException:
            entered.close()
            raise

    async def refusal(self, limit: Limit, error: Exception | None) -> Refusal | None:
        """Return the answer to a request that got no slot because of ``error``, if any.

        None if the limit is only observed.
        """
        if self.observe:
            self._log(error)
            self.would_refuse += 1
            return None
        self.refused += 1
        try:
            if isinstance(error, UNUSABLE):
                raise error
            return await refusal_of(limit, error, self._mean)
        except UNUSABLE as trouble:  # its message may name a server, which clients should not see
            self._log(trouble)
            return unavailable(trouble)

    def add_hold(self, seconds: float) -> None:
        mean = self._mean
        self._mean = seconds if mean is None else mean + (seconds - mean) / 8

    def _log(self, error: Exception | None) -> None:
        """Log what an operator has to fix; all requests meet it, so at most once a minute."""
        if not isinstance(error, BackendError | ValueConflict):
            return
        now = clock.now()
        if now - self._logged_at < _LOG_EVERY:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more requests since the last time)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        logger.error("a request got no slot: %s%s", error, more)


_PROBLEM = "https://iana.org/assignments/http-problem-types#"
_KINDS = {
    429: ("quota-exceeded", "The quota for these requests is exceeded"),
    503: ("temporary-reduced-capacity", "The service is at its limit for the moment"),
}
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
