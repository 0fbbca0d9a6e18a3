"""Admission: which requests a web framework lets in, and the slot that each of them holds.

It is the same for every framework: each says when a response is closed, and sends the refusals,
whose contents are in `_refusal`. `_asgi_exchange` waits in line while it watches the client.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from slotwise._core.arguments import check_flag, check_seconds
from slotwise._core.limit import Limit
from slotwise._core.redaction import redacted_repr
from slotwise._core.results import AcquisitionResult
from slotwise._wait import clock
from slotwise.errors import AcquireTimeout, BackendError, LimitFull, ValueConflict
from slotwise.integrations._refusal import UNUSABLE, Refusal, refusal_of, unavailable
from slotwise.integrations._source import KeyFunction, LimitArgument, limit_finder

# Paths that middlewares never limit: a service that is full is still healthy.
EXEMPT = ("/healthz", "/livez", "/readyz", "/metrics")
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
