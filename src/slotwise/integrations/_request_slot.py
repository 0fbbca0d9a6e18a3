"""RequestSlot: the slot of one request, for frameworks that say when its response is closed.

Entering returns the slot, or the refusal to answer with. `asgi` waits in line while it watches
the client.
"""

from __future__ import annotations

import time
from functools import partial

from slotwise._core.arguments import check_seconds
from slotwise._core.limit import Limit
from slotwise._core.results import AcquisitionResult
from slotwise.errors import AcquireTimeout, LimitFull
from slotwise.integrations._refusal import (
    UNUSABLE,
    Refusal,
    RequestTimes,
    Troubles,
    refusal_of,
)

# What a limit says to a request that gets no slot.
NO_SLOT = (AcquireTimeout, LimitFull, *UNUSABLE)


class RequestSlot:
    """A slot until `close`, or `close_async`, is called; calling it again does no harm.

    A framework that drops a response without closing it has its slot released when the response
    is garbage-collected.
    """

    __slots__ = ("__weakref__", "_acquired", "_granted_at", "_limit", "_times")

    def __init__(
        self, limit: Limit, acquired: AcquisitionResult | None, times: RequestTimes | None = None
    ) -> None:
        self._limit = limit
        self._acquired = acquired
        self._times = times
        self._granted_at = time.monotonic()

    def close(self) -> None:
        acquired = self._taken()
        if acquired is not None:
            self._limit._release_on_exit_sync(acquired)

    async def close_async(self) -> None:
        acquired = self._taken()
        if acquired is not None:
            await self._limit._release_on_exit(acquired)

    def _taken(self) -> AcquisitionResult | None:
        acquired, self._acquired = self._acquired, None
        if acquired is not None and self._times is not None:
            self._times.add(time.monotonic() - self._granted_at)
        return acquired

    def __del__(self) -> None:
        self.close()


def leave_with(
    acquired: AcquisitionResult, error: BaseException, alike: type[BaseException] | None
) -> None:
    """Tell an adaptive limit how the work ended: by an error, or by one that counts as a drop.

    Clients have timeouts of their own, which are not a TimeoutError.
    """
    drop_on = () if acquired._outcomes is None else acquired._outcomes.options.drop_on
    is_alike = alike is not None and issubclass(alike, drop_on)
    acquired._leave_with(alike if is_alike else type(error))


class Admission:
    """Lets requests in, or tells how to refuse them.

    Args:
        wait: how long a request may wait for a slot, in seconds; None forever.
    """

    def __init__(self, wait: float | None) -> None:
        self._wait = check_seconds("wait", wait, zero=True)
        self._times = RequestTimes()
        self._troubles = Troubles()

    async def enter(self, limit: Limit) -> RequestSlot | Refusal:
        error: Exception | None = None
        acquired: AcquisitionResult | None = None
        try:
            if self._wait == 0:
                acquired = await limit.try_acquire()
            else:
                acquired = await limit.acquire(timeout=self._wait)
        except NO_SLOT as no_slot:
            error = no_slot
        if acquired is not None:
            return RequestSlot(limit, acquired, self._times)
        return await refusal_of(limit, error, self._times, self._troubles)

    def enter_sync(self, limit: Limit) -> RequestSlot | Refusal:
        error: Exception | None = None
        acquired: AcquisitionResult | None = None
        try:
            if self._wait == 0:
                acquired = limit.try_acquire_sync()
            else:
                acquired = limit.acquire_sync(timeout=self._wait)
        except NO_SLOT as no_slot:
            error = no_slot
        if acquired is not None:
            return RequestSlot(limit, acquired, self._times)
        return limit._run(partial(refusal_of, limit, error, self._times, self._troubles))
