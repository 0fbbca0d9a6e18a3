"""LocalClaims: tell the acquisitions of this process in one limit what happened to them.

Events are handled while the locks are held. What runs other code, or makes system calls, is
collected here, and `act` does it when the locks are released: whichever thread comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from slotwise._core.messages import cancelled_after_ttl, ttl_ended
from slotwise._wait.ttl_cancel import TtlCancels
from slotwise._wait.wakers import prepare_to_wake
from slotwise._wait.woken import Woken
from slotwise.processes import _log, _messages
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._state import ClaimEvent, State

if TYPE_CHECKING:
    from slotwise.processes._limit import SharedLimit

T = TypeVar("T")


class LocalClaims:
    """The holders and waiters of this process."""

    # Between any two changes:
    #   L1  by_id has the acquisitions of this process that hold or wait
    #   L2  sleeping has the ids of those that sleep until they are granted

    def __init__(self, limit: SharedLimit) -> None:
        self._limit = limit
        self._owner = limit.journal.owner
        self.by_id: dict[str, ProcessAcquisition] = {}
        self.sleeping: set[str] = set()
        self.woken = Woken()
        self.ttl_cancels = TtlCancels()  # by acquisition id
        # What `act` has to do: wake waiters in the order of the grants, notify the owners of claims
        # in other processes, and report losses, each with its event.
        self._wake: deque[Callable[[], object]] = deque()
        self._notify: deque[str] = deque()
        self._lost: deque[tuple[ProcessAcquisition, str]] = deque()

    # ------------------------------------------------------- while the locks are held

    def apply(
        self, events: Iterable[ClaimEvent], state: State, now: float, *, written_here: bool = False
    ) -> None:
        """Apply the events of this process's claims, and collect the other processes.

        Other processes are only notified of what was ``written_here``, and nobody here is told of
        a release or a cancellation that was.
        """
        for event, claim in events:
            acquisition = self.by_id.get(claim.key)
            if claim.owner != self._owner:
                if written_here:
                    self.notify(claim.owner)
            elif acquisition is None:
                continue
            elif event == "granted":
                if not acquisition.holds:
                    acquisition.grant(claim, now)
                    self._end_wait(acquisition)
                    if state.holds_nothing:  # so this was its end, too
                        self.leave(acquisition)
            elif event == "kicked" and claim.key in state.holders:
                self._lost.append((acquisition, event))  # it keeps its slots for its grace
            elif written_here and event in ("released", "cancelled"):
                self.leave(acquisition)
            else:
                self._end(acquisition, event, state, now)

    def reconcile(self, state: State, now: float) -> None:
        """Compare the claims with the state, when the records in between are gone."""
        for acquisition_id, acquisition in list(self.by_id.items()):
            claim = state.holders.get(acquisition_id)
            if claim is None and state.holds_nothing:
                claim = state.recent.get(acquisition_id)
            if claim is not None:
                self.apply([("granted", claim)], state, now)
                if claim.is_kicked and not acquisition.lost:
                    self.apply([("kicked", claim)], state, now)
            elif acquisition_id not in state.waiting:
                self._end(acquisition, _likely_event(acquisition, state, now), state, now)

    def end_all(self) -> None:
        """End all claims: their journal is gone, and another one knows nothing about them."""
        for acquisition in list(self.by_id.values()):
            self._end(acquisition, "ended" if acquisition.holds else "gone", None, 0.0)

    def fail(self, failure_of: Callable[[ProcessAcquisition], Exception | None]) -> list[str]:
        """End the waits that have a failure, wherever they wait; return their ids."""
        waits = [each for each in self.by_id.values() if not each.holds]
        failed = {each: failure for each in waits if (failure := failure_of(each)) is not None}
        for acquisition, failure in failed.items():
            acquisition.failure = failure
            self.leave(acquisition)
            self._end_wait(acquisition)
        return [each.acquisition_id for each in failed]

    def leave(self, acquisition: ProcessAcquisition) -> None:
        """Forget one that holds or waits no longer; calling it twice does no harm."""
        self.by_id.pop(acquisition.acquisition_id, None)
        acquisition.end()

    def notify(self, owner: str) -> None:
        """Have another process read what is written now."""
        if owner not in self._notify:
            self._notify.append(owner)

    def _end(
        self, acquisition: ProcessAcquisition, event: str, state: State | None, now: float
    ) -> None:
        self.leave(acquisition)
        if acquisition.holds:
            acquisition.holds = False
            self._lost.append((acquisition, event))
        else:
            failure: Exception | None = None
            if event == "closed":
                closure = None if state is None else state.closure
                failure = acquisition.backend._closed_error(closure)
            elif state is not None and event == "timed out":
                failure = _messages.timed_out(acquisition, state, now)
            elif state is not None and event == "too many":
                wanted = acquisition.wanted
                failure = state.never_fits(self._limit.public_name, wanted.path, wanted.needs)
            acquisition.failure = failure or _messages.wait_lost(self._limit.journal.place)
            self._end_wait(acquisition)

    def _end_wait(self, acquisition: ProcessAcquisition) -> None:
        self.sleeping.discard(acquisition.acquisition_id)
        if acquisition.waker is not None:
            self._wake.append(prepare_to_wake(acquisition.waker, self._limit, acquisition))

    # ----------------------------------------------------- after the locks are released

    def act(self) -> None:
        """Wake waiters, notify other processes, and report losses."""
        if not (self._wake or self._notify or self._lost):
            return
        for wake in _each(self._wake):
            wake()
        for owner in _each(self._notify):
            self._limit.journal.notify(owner)
        for acquisition, event in _each(self._lost):
            self._report_lost(acquisition, event)

    def _report_lost(self, acquisition: ProcessAcquisition, event: str) -> None:
        is_expired = event == "expired"
        reason = ttl_ended(acquisition.ttl) if is_expired else _messages.LOST_REASONS[event]
        cancel = None
        if is_expired and acquisition.task is not None:
            cancel = self.ttl_cancels.announce(
                acquisition.acquisition_id,
                acquisition.task,
                cancelled_after_ttl(acquisition.acquisition_id, acquisition.ttl),
            )
        acquisition.lost.set(reason)
        if cancel is not None:
            cancel.send()
        _log.lost(acquisition, event, reason)


def _each(queue: deque[T]) -> Iterator[T]:
    """Take what is in a queue; other threads may take some of it at the same time."""
    while queue:
        try:
            yield queue.popleft()
        except IndexError:
            return


def _likely_event(acquisition: ProcessAcquisition, state: State, now: float) -> str:
    """Return what probably ended an acquisition whose records are gone."""
    if acquisition.holds:
        ttl = acquisition.ttl
        return "expired" if ttl is not None and acquisition.granted_at + ttl <= now else "ended"
    if acquisition.wait_until is not None and acquisition.wait_until <= now:
        return "timed out"
    if state.never_fits(None, acquisition.wanted.path, acquisition.wanted.needs) is not None:
        return "too many"
    return "closed" if state.closed else "owner died"
