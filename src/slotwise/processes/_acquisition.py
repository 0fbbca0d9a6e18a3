"""ProcessAcquisition: one claim of this process, from its request to its end.

It is also the caller's result. The ledger decides what happens to it, and `_local_claims` tells it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from slotwise._core import events
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.paths import (
    is_semaphore,
    keys_by_name,
)
from slotwise._core.results import AcquisitionResult
from slotwise._wait.wakers import Waker
from slotwise.processes._claims import ProcessClaim, Request

if TYPE_CHECKING:
    import asyncio

    from slotwise._core.idle_keys import IdleKeys
    from slotwise.processes._backend import ProcessBackend
    from slotwise.processes._limit import SharedLimit

MakeWaker: TypeAlias = "Callable[[], Waker]"


class ProcessAcquisition(AcquisitionResult):
    """A request for slots of one or several tiers, then a hold on them."""

    _scope = "process"

    __slots__ = (
        *("_outcomes", "backend", "failure", "grace", "granted_at", "holds", "idle", "label"),
        *("limit", "replaces", "requested", "requested_at", "task", "timeout", "ttl"),
        *("wait_until", "waker", "wanted"),
    )

    def __init__(
        self,
        acquisition_id: str,
        backend: ProcessBackend,
        limit: SharedLimit,
        wanted: Request,
        timeout: float | None,
        label: str | None,
        requested_at: float,
    ) -> None:
        self._acquisition_id = acquisition_id
        self._slot_number = 0
        self._outcomes: Outcomes | None = None
        self.backend = backend  # that was asked
        self.limit = limit
        self.wanted = wanted
        self.ttl = backend._ttl
        self.timeout = timeout
        self.label = label
        self.requested_at = requested_at
        self.grace = backend.grace  # how long it keeps its slots after a kick
        self.idle: IdleKeys | None = None  # where its keys are counted as busy
        self.replaces = False  # whether it replaces a holder instead of waiting
        self.requested = False  # whether it may be in the journal
        self.granted_at = 0.0
        self.holds = False
        self.waker: Waker | None = None  # set when it begins to wait
        self.wait_until: float | None = None
        self.failure: Exception | None = None  # why the wait ended without a grant
        self.task: asyncio.Task[Any] | None = None  # to be cancelled when the ttl ends

    def pauses(self) -> Sequence[events.Pause]:
        """Return what its service has asked to pause."""
        specs = () if is_semaphore(self.backend._specs) else self.backend._specs
        return asked_pauses(self._outcomes, specs, self.wanted.path)

    def settle(self, **costs: int) -> Awaitable[None]:
        if is_semaphore(self.backend._specs):
            return super().settle(**costs)
        return self.backend.settle_soon(self.acquisition_id, costs)

    def _keys(self) -> dict[str, str]:
        return keys_by_name(self.backend._specs, self.wanted.path)

    def begin(self, idle: IdleKeys | None) -> None:
        """Note that it may be in the journal from now on."""
        self.requested = True
        if idle is not None and self.idle is None:
            self.idle = idle
            path, values = self.wanted.path, self.wanted.values
            idle.enter(path)
            if values:
                idle.remember([(tier, str(path[tier]), value) for tier, value in values])

    def end(self) -> None:
        """Note that it no longer holds or waits; calling it twice does no harm."""
        idle, self.idle = self.idle, None
        if idle is not None:
            idle.leave(self.wanted.path)

    def grant(self, claim: ProcessClaim, now: float) -> None:
        self._slot_number = claim._slot_number
        self._fencing_token = claim.token
        self.granted_at = now
        self.holds = True
        if self.waker is None:
            self._waited = 0.0
        else:  # a claim from a snapshot doesn't have it: then assume now
            self._waited = max(getattr(claim, "granted_at", now) - self.requested_at, 0.0)
