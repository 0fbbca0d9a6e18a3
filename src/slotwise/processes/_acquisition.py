"""ProcessAcquisition: one claim of this process, from its request to its end.

It is also the caller's result. The ledger in the semaphore's file decides what happens to it, and
`_local_claims` tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from slotwise._core import events
from slotwise._core.closing import Closure, Generation
from slotwise._core.messages import closed_error, display
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.overload import Overload
from slotwise._core.results import AcquisitionResult
from slotwise._wait.wakers import Waker, prepare_to_wake
from slotwise.errors import SemaphoreClosed

if TYPE_CHECKING:
    import asyncio

    from slotwise.processes._base_state import ProcessClaim
    from slotwise.processes._semaphore_file import SemaphoreFile

MakeWaker: TypeAlias = "Callable[[], Waker]"


class ProcessAcquisition(AcquisitionResult):
    """A request for slots, then a hold on them."""

    _scope = "process"

    __slots__ = (
        "_outcomes",
        "failure",
        "file",
        "generation",
        "grace",
        "granted_at",
        "holds",
        "label",
        "overload",
        "replaces",
        "requested",
        "requested_at",
        "task",
        "timeout",
        "ttl",
        "wait_until",
        "waker",
        "wanted",
    )

    def __init__(
        self,
        acquisition_id: str,
        file: SemaphoreFile,
        wanted: Any,
        ttl: float | None,
        timeout: float | None,
        label: str | None,
        requested_at: float,
        generation: Generation,
    ) -> None:
        self._acquisition_id = acquisition_id
        self._slot_number = 0
        self._outcomes: Outcomes | None = None
        self.file = file
        self.wanted = wanted  # a number of slots; for tiers, see `_path_state`
        self.ttl = ttl
        self.timeout = timeout
        self.label = label
        self.requested_at = requested_at
        self.generation = generation  # of the instance that was asked
        self.grace = 0.0  # how long it keeps its slots after a kick
        self.overload: Overload | None = None  # of the instance that was asked
        self.replaces = False  # whether it replaces a holder instead of waiting
        self.requested = False  # whether it may be in the file
        self.granted_at = 0.0
        self.holds = False
        self.waker: Waker | None = None  # set when it begins to wait
        self.wait_until: float | None = None
        self.failure: Exception | None = None  # why the wait ended without a grant
        self.task: asyncio.Task[Any] | None = None  # to be cancelled when the ttl ends

    @property
    def title(self) -> str:
        """The name of its limit in messages."""
        return display(self.file.public_name)

    def closed_error(self, closure: Closure | None = None) -> SemaphoreClosed:
        """Return the error for a closed limit, closed everywhere if there is a ``closure``."""
        return closed_error(f"{self.title} is", closure)

    def pauses(self) -> Sequence[events.Pause]:
        """Return what its service has asked to pause, for events."""
        return asked_pauses(self._outcomes)

    def paused(self) -> Sequence[tuple[Any, ...]]:
        """Return what is paused if its service asks for a pause, as records have it."""
        return [()]

    def begin(self) -> None:
        """Note that it may be in the file from now on."""
        self.requested = True

    def end(self) -> None:
        """Note that it no longer holds or waits; calling it twice does no harm."""

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
