"""LocalClaims: tell the acquisitions of this process in one file what happened to them.

Events are handled while the locks are held. What runs other code, or makes other system
calls, is collected in an `AfterUnlock` and done when the locks are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slotwise._core import fork
from slotwise._core.messages import cancelled_after_ttl
from slotwise._ledger import NEVER
from slotwise._wait.woken import Woken
from slotwise.processes import _log, _messages, _newcomers
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._claims import ProcessClaim
from slotwise.processes._errors import Busy
from slotwise.processes._state import ClaimEvent, State

if TYPE_CHECKING:
    from slotwise.errors import BackendError
    from slotwise.processes._process import LocalProcess


class AfterUnlock:
    """What a change leaves to do when the locks are released; usually nothing."""

    wake: deque[ProcessAcquisition] | None = None
    lost: deque[tuple[ProcessAcquisition, str]] | None = None  # with the event
    notify: set[str] | None = None  # owners of claims in other processes
    deadline: float = NEVER  # when the next hold or wait expires

    def __init__(self, now: float) -> None:
        self.now = now


class LocalClaims:
    """The holders and waiters of this process."""

    # Between any two changes:
    #   L1  by_id has the acquisitions of this process that hold or wait
    #   L2  waiting is how many of them sleep until they are granted

    def __init__(self, process: LocalProcess, key: str, name: str | None, path: str) -> None:
        self._process = process
        self._owner = process.owner
        self._name = name  # for messages
        self._path = path
        self.key = key
        self.by_id: dict[str, ProcessAcquisition] = {}
        self.waiting = 0
        self.woken = Woken()
        self.to_wake: deque[ProcessAcquisition] = deque()  # in the order of the grants
        self._wake_lock = fork.new_lock()
        self._waking = False

    # ------------------------------------------------- while the file is locked

    def apply(
        self,
        events: Iterable[ClaimEvent],
        state: State,
        after: AfterUnlock,
        *,
        written_here: bool = False,
    ) -> None:
        """Apply the events of this process's claims, and collect the other processes.

        Other processes are only notified of what was ``written_here``.
        """
        own = self._owner
        for event, claim in events:
            if claim.owner == own:
                acquisition = self.by_id.get(claim.key)
                if acquisition is not None:
                    self._apply(acquisition, event, claim, state, after)
            elif written_here:
                after.notify = {*(after.notify or ()), claim.owner}

    def reconcile(self, state: Any, after: AfterUnlock) -> None:
        """Compare the claims with the state, when the records in between are gone."""
        for acquisition_id, acquisition in list(self.by_id.items()):
            claim = state.holders.get(acquisition_id)
            if claim is not None:
                self._apply(acquisition, "granted", claim, state, after)
                if claim.is_kicked and not acquisition.lost:
                    self._apply(acquisition, "kicked", claim, state, after)
            elif state.holds_nothing and acquisition_id in state.recent:
                self._apply(acquisition, "granted", state.recent[acquisition_id], state, after)
            elif acquisition_id not in state.waiting:
                self._end(acquisition, _likely_event(acquisition, state, after.now), state, after)

    def end_all(self, after: AfterUnlock) -> None:
        """End all claims: their file is gone, and another one knows nothing about them."""
        for acquisition in list(self.by_id.values()):
            self._end(acquisition, "ended" if acquisition.holds else "file gone", None, after)

    def fail_overdue(self, state: State, after: AfterUnlock, lock_error: Busy | None) -> list[str]:
        """End the waits whose time is up, although the file can't be changed; return the ids."""
        overdue = [
            acquisition
            for acquisition in self.by_id.values()
            if not acquisition.holds and (acquisition.wait_until or after.now) < after.now
        ]
        for acquisition in overdue:
            self._end(acquisition, "timed out", state, after)
            acquisition.failure = _messages.timed_out(acquisition, state, lock_error)
        return [acquisition.acquisition_id for acquisition in overdue]

    def fail_waits(self, error: BackendError, after: AfterUnlock) -> list[str]:
        """End all waits, because of what is wrong with the file; return the ids."""
        waits = [each for each in self.by_id.values() if not each.holds]
        for acquisition in waits:
            self._end(acquisition, "file gone", None, after)
            acquisition.failure = type(error)(*error.args)  # each raises its own
        return [acquisition.acquisition_id for acquisition in waits]

    def fail_closed(self, state: State, after: AfterUnlock) -> list[str]:
        """End the waits of instances that this process closed; return the ids."""
        closed = [
            acquisition
            for acquisition in self.by_id.values()
            if not acquisition.holds and acquisition.generation.closed
        ]
        for acquisition in closed:
            self._end(acquisition, "closed", state, after)
        return [acquisition.acquisition_id for acquisition in closed]

    def _end(
        self,
        acquisition: ProcessAcquisition,
        event: str,
        state: State | None,
        after: AfterUnlock,
    ) -> None:
        del self.by_id[acquisition.acquisition_id]
        acquisition.end()
        if acquisition.holds:
            acquisition.holds = False
            after.lost = after.lost or deque()
            after.lost.append((acquisition, event))
        else:
            acquisition.failure = self._failure(acquisition, event, state)
            if acquisition.waker is not None:
                self._end_wait(acquisition, after)

    def _apply(
        self,
        acquisition: ProcessAcquisition,
        event: str,
        claim: ProcessClaim,
        state: State,
        after: AfterUnlock,
    ) -> None:
        if event == "kicked" and claim.key in state.holders:
            after.lost = after.lost or deque()  # it keeps its slots for its grace
            after.lost.append((acquisition, event))
        elif event != "granted":
            self._end(acquisition, event, state, after)
        elif not acquisition.holds:
            acquisition.grant(claim, after.now)
            if state.holds_nothing:  # so this was its end, too
                del self.by_id[acquisition.acquisition_id]
                acquisition.end()
            if acquisition.waker is not None:
                self._end_wait(acquisition, after)

    def _end_wait(self, acquisition: ProcessAcquisition, after: AfterUnlock) -> None:
        self.waiting -= 1
        if after.wake is None:
            after.wake = deque()
        after.wake.append(acquisition)

    def _failure(
        self, acquisition: ProcessAcquisition, event: str, state: State | None
    ) -> Exception:
        if event == "closed":
            if state is None or acquisition.generation.closed:
                return acquisition.closed_error()
            return acquisition.closed_error(state.closure)
        if state is not None and event == "timed out":
            return _messages.timed_out(acquisition, state)
        if state is not None and event == "too many":
            never = _newcomers.never_fits(state, acquisition.wanted, None, self._name)
            return never or _messages.wait_lost(self._path)
        return _messages.wait_lost(self._path)

    def post(self, after: AfterUnlock) -> None:
        """Queue those whose wait has ended, after those of earlier changes, *in the mutex*.

        Two threads that made changes one after the other may reach `deliver` in any order.
        """
        if after.wake is not None:
            self.to_wake += after.wake
            after.wake = None

    # --------------------------------------------- after the locks are released

    def deliver(self, after: AfterUnlock, *, interrupted: bool = False) -> None:
        """Wake waiters, notify other processes, and report losses.

        Each is taken off the list once it is done, so that a signal handler that raises in
        between doesn't keep the rest from being told.
        """
        try:
            self.post(after)  # not posted yet: their waits failed, so order doesn't matter
            self._wake_posted()
            while after.notify:
                owner = next(iter(after.notify))
                self._process.wakeups.notify(owner, self.key)
                after.notify.discard(owner)
            while after.lost:
                self._report_lost(*after.lost[0])
                after.lost.popleft()
        except BaseException:
            if not interrupted:
                self.deliver(after, interrupted=True)
            raise

    def _wake_posted(self) -> None:
        while self.to_wake:
            with self._wake_lock:
                if self._waking:  # this interrupted itself, and continues afterwards
                    return
                self._waking = True
                try:
                    while self.to_wake:
                        self.to_wake[0].wake()
                        self.to_wake.popleft()
                finally:
                    self._waking = False

    def _report_lost(self, acquisition: ProcessAcquisition, event: str) -> None:
        reason = _messages.lost_reason(event, acquisition.ttl)
        cancel = None
        if event == "expired" and acquisition.task is not None:
            cancel = self._process.ttl_cancels.announce(
                acquisition.acquisition_id,
                acquisition.task,
                cancelled_after_ttl(acquisition.acquisition_id, acquisition.ttl),
            )
        acquisition.lost.set(reason)
        if cancel is not None:
            cancel.send()
        _log.lost(acquisition, event, reason)


def _likely_event(acquisition: ProcessAcquisition, state: State, now: float) -> str:
    """Return what probably ended an acquisition whose records are gone."""
    if acquisition.holds:
        ttl = acquisition.ttl
        return "expired" if ttl is not None and acquisition.granted_at + ttl <= now else "ended"
    if acquisition.wait_until is not None and acquisition.wait_until <= now:
        return "timed out"
    if _newcomers.never_fits(state, acquisition.wanted, None, None) is not None:
        return "too many"
    return "closed" if state.closed else "owner died"
