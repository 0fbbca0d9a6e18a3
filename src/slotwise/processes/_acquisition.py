"""ProcessAcquisition: one claim of this process, from its request to its end.

It is also the caller's result. The ledger in the file decides what happens to it, and
`_local_claims` tells it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from slotwise._core import events
from slotwise._core.closing import Closure, Generation
from slotwise._core.messages import closed_error
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.overload import Overload
from slotwise._core.paths import (
    TierSpec,
    check_costs,
    is_semaphore,
    keys_by_name,
    pausing,
    subject_of,
    title_of,
)
from slotwise._core.results import AcquisitionResult
from slotwise._wait.wakers import Waker, prepare_to_wake
from slotwise.errors import SemaphoreClosed
from slotwise.processes._claims import ProcessClaim, Request

if TYPE_CHECKING:
    import asyncio

    from slotwise._core.idle_keys import IdleKeys
    from slotwise.processes._attachment import Attachment
    from slotwise.processes._semaphore_file import SemaphoreFile

MakeWaker: TypeAlias = "Callable[[], Waker]"


class ProcessAcquisition(AcquisitionResult):
    """A request for slots of one or several tiers, then a hold on them."""

    _scope = "process"

    __slots__ = (
        *("_outcomes", "attachment", "failure", "file", "generation", "grace", "granted_at"),
        *("holds", "idle", "is_counted", "label", "make_closed_error", "overload", "replaces"),
        *("requested", "requested_at", "specs", "task", "timeout", "ttl", "wait_until", "waker"),
        "wanted",
    )

    # Of the object that was asked.
    attachment: Attachment
    generation: Generation
    idle: IdleKeys | None  # None without keys
    make_closed_error: Callable[..., SemaphoreClosed]
    overload: Overload | None
    specs: tuple[TierSpec, ...]

    def __init__(
        self,
        acquisition_id: str,
        file: SemaphoreFile,
        wanted: Request,
        ttl: float | None,
        timeout: float | None,
        label: str | None,
        requested_at: float,
    ) -> None:
        self._acquisition_id = acquisition_id
        self._slot_number = 0
        self._outcomes: Outcomes | None = None
        self.file = file
        self.wanted = wanted
        self.ttl = ttl
        self.timeout = timeout
        self.label = label
        self.requested_at = requested_at
        self.grace = 0.0  # how long it keeps its slots after a kick
        self.replaces = False  # whether it replaces a holder instead of waiting
        self.requested = False  # whether it may be in the file
        self.is_counted = False  # whether its keys are counted as busy
        self.granted_at = 0.0
        self.holds = False
        self.waker: Waker | None = None  # set when it begins to wait
        self.wait_until: float | None = None
        self.failure: Exception | None = None  # why the wait ended without a grant
        self.task: asyncio.Task[Any] | None = None  # to be cancelled when the ttl ends

    @property
    def title(self) -> str:
        """The name of its limit in messages."""
        return title_of(self.specs, self.file.public_name)

    def closed_error(self, closure: Closure | None = None) -> SemaphoreClosed:
        """Return the error for a closed limit, closed everywhere if there is a ``closure``."""
        subject = subject_of(self.specs, self.file.public_name)
        return closed_error(subject, closure, self.make_closed_error)

    def pauses(self) -> Sequence[events.Pause]:
        """Return what its service has asked to pause, for events."""
        specs = () if is_semaphore(self.specs) else self.specs
        return asked_pauses(self._outcomes, specs, self.wanted.path)

    def paused(self) -> Sequence[tuple[int, str | None]]:
        """Return what is paused if its service asks for a pause, as records have it."""
        if is_semaphore(self.specs):  # whose options need not be known
            return [(0, None)]
        return pausing(self.specs, self.wanted.path)

    def settle(self, **costs: int) -> Awaitable[None]:
        """State the real costs; written with the release if that comes in the same tick."""
        if is_semaphore(self.specs):
            return super().settle(**costs)
        from slotwise.processes._settling import settle_soon

        check_costs(self.specs, costs, self.title)
        return settle_soon(self.attachment, self.acquisition_id, costs, self.title)

    def _keys(self) -> dict[str, str]:
        return keys_by_name(self.specs, self.wanted.path)

    def begin(self) -> None:
        """Note that it may be in the file from now on."""
        self.requested = True
        if self.idle is not None and not self.is_counted:
            self.is_counted = True
            path, values = self.wanted.path, self.wanted.values
            self.idle.enter(path)
            if values:
                self.idle.remember([(tier, str(path[tier]), value) for tier, value in values])

    def end(self) -> None:
        """Note that it no longer holds or waits; calling it twice does no harm."""
        if self.idle is not None and self.is_counted:
            self.is_counted = False
            self.idle.leave(self.wanted.path)

    def grant(self, claim: ProcessClaim, now: float) -> None:
        self._slot_number = claim._slot_number
        self._fencing_token = claim.token
        self.granted_at = now
        self.holds = True
        if self.waker is None:
            self._waited = 0.0
        else:  # a claim from a snapshot doesn't have it: then assume now
            self._waited = max(getattr(claim, "granted_at", now) - self.requested_at, 0.0)

    def wake(self) -> None:
        """Tell the waiter, in any thread, that the wait is over; calling it twice does no harm."""
        if self.waker is not None:
            prepare_to_wake(self.waker, self.file, self)()
