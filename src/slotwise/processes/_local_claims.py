"""Members: the acquisitions of this process in one semaphore, and how they learn what happened.

Events are sorted out while the locks are held, and told when they are open
again: what is left to do until then are the deeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from slotwise._ledger import NEVER
from slotwise._wait.woken import Woken
from slotwise.processes import _log, _messages
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._folder import key_of
from slotwise.processes._messages import Busy
from slotwise.processes._state import Entry, Event, State

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess


class AfterUnlock:
    """What is left to do when the locks are open again; mostly nothing."""

    wake: deque[ProcessAcquisition] | None = None
    lost: deque[tuple[ProcessAcquisition, str]] | None = None
    hints: set[str] | None = None  # processes that have to look
    alarm: float = NEVER  # when to see to those whose time is up

    def __init__(self, now: float) -> None:
        self.now = now


class LocalClaims:
    """Who of this process holds or waits."""

    # Between any two changes:
    #   M1  `all` has the acquisitions of this process that hold or wait, by id
    #   M2  `waiting` is how many of them sleep until they are granted

    def __init__(self, process: LocalProcess, name: str, path: Path) -> None:
        self._process = process
        self._name = name
        self._path = path
        self.key = key_of(name)
        self.all: dict[str, ProcessAcquisition] = {}
        self.waiting = 0
        self.woken = Woken()

    # ----------------------------------------------------- while it is locked

    def note(
        self, events: Iterable[Event], state: State, deeds: AfterUnlock, *, told_by_us: bool = False
    ) -> None:
        """Sort out whom events concern: us, or other processes, which we tell of our own."""
        own = self._process.owner
        for word, entry in events:
            if entry.owner == own:
                acquisition = self.all.get(entry.acquisition_id)
                if acquisition is not None:
                    self._tell(acquisition, word, entry, state, deeds)
            elif told_by_us:
                deeds.hints = {*(deeds.hints or ()), entry.owner}

    def reconcile(self, state: State, deeds: AfterUnlock) -> None:
        """Find out what became of ours when the records that told it are gone."""
        for acquisition_id, acquisition in list(self.all.items()):
            entry = state.holders.get(acquisition_id)
            if entry is not None:
                self._tell(acquisition, "granted", entry, state, deeds)
            elif acquisition_id not in state.waiting:
                self._end(acquisition, _guess(acquisition, state, deeds.now), state, deeds)

    def end_all(self, deeds: AfterUnlock) -> None:
        """Tell all of ours that the file they were in is gone; another says nothing of them."""
        for acquisition in list(self.all.values()):
            self._end(acquisition, "ended" if acquisition.holds else "displaced", None, deeds)

    def _end(
        self, acquisition: ProcessAcquisition, word: str, state: State | None, deeds: AfterUnlock
    ) -> None:
        gone = Entry(acquisition.acquisition_id, acquisition.slots, acquisition.ttl, 0, None, 0)
        self._tell(acquisition, word, gone, state, deeds)

    def give_up_overdue(self, state: State, deeds: AfterUnlock, stuck: Busy | None) -> list[str]:
        """End the waits here whose time is up, though the file can't be told: their ids."""
        overdue = [
            acquisition
            for acquisition in self.all.values()
            if not acquisition.holds and (acquisition.wait_until or deeds.now) < deeds.now
        ]
        ids = self._give_up(overdue, "timed out", state, deeds)
        for acquisition in overdue:
            acquisition.failure = _messages.timed_out(
                self._name, acquisition.timeout or 0.0, state, stuck
            )
        return ids

    def give_up_closed(self, state: State, deeds: AfterUnlock) -> list[str]:
        """End the waits of instances that this process closed: their ids."""
        closed = [
            acquisition
            for acquisition in self.all.values()
            if not acquisition.holds and acquisition.generation.closed
        ]
        return self._give_up(closed, "closed", state, deeds)

    def _give_up(
        self, waiters: Iterable[ProcessAcquisition], word: str, state: State, deeds: AfterUnlock
    ) -> list[str]:
        ids = [acquisition.acquisition_id for acquisition in waiters]
        for acquisition in waiters:
            self._end(acquisition, word, state, deeds)
        return ids

    def _tell(
        self,
        acquisition: ProcessAcquisition,
        word: str,
        entry: Entry,
        state: State | None,
        deeds: AfterUnlock,
    ) -> None:
        if word == "granted":
            if not acquisition.holds:
                acquisition.grant(entry, deeds.now)
                self._leave_line(acquisition, deeds)
            return
        del self.all[acquisition.acquisition_id]
        if acquisition.holds:
            acquisition.holds = False
            deeds.lost = deeds.lost or deque()
            deeds.lost.append((acquisition, word))
        else:
            acquisition.failure = self._failure(acquisition, word, state)
            self._leave_line(acquisition, deeds)

    def _leave_line(self, acquisition: ProcessAcquisition, deeds: AfterUnlock) -> None:
        if acquisition.waker is not None:
            self.waiting -= 1
            if deeds.wake is None:
                deeds.wake = deque()
            deeds.wake.append(acquisition)

    def _failure(
        self, acquisition: ProcessAcquisition, word: str, state: State | None
    ) -> Exception:
        if word == "closed":
            if state is None or acquisition.generation.closed:
                return _messages.closed(self._name)
            return _messages.closed(self._name, state.closure)
        if state is not None and word == "timed out":
            return _messages.timed_out(self._name, acquisition.timeout or 0.0, state)
        if state is not None and word == "too many":
            return _messages.too_many(self._name, acquisition.slots, state.value)
        return _messages.place_lost(self._path)

    # ---------------------------------------------------------- and afterwards

    def act(self, deeds: AfterUnlock, *, interrupted: bool = False) -> None:
        """Wake ours, hint to others, and tell those who lost what they held.

        Each is crossed out once it was told: a signal handler that raises meanwhile
        keeps the rest from nothing.
        """
        try:
            while deeds.wake:
                deeds.wake[0].wake()
                deeds.wake.popleft()
            while deeds.hints:
                owner = next(iter(deeds.hints))
                self._process.post.hint(owner, self.key)
                deeds.hints.discard(owner)
            while deeds.lost:
                self._mourn(*deeds.lost[0])
                deeds.lost.popleft()
        except BaseException:
            if not interrupted:
                self.act(deeds, interrupted=True)
            raise

    def _mourn(self, acquisition: ProcessAcquisition, word: str) -> None:
        if word == "expired":
            acquisition.condemn()
            if acquisition.condemned:
                self._process.condemned[acquisition.acquisition_id] = acquisition
        reason = _messages.REASONS[word].format(ttl=acquisition.ttl)
        acquisition.lost.set(reason)
        _log.ended(acquisition, reason)


def _guess(acquisition: ProcessAcquisition, state: State, now: float) -> str:
    if acquisition.holds:
        over = acquisition.ttl is not None and acquisition.since + acquisition.ttl <= now
        return "expired" if over else "ended"
    if acquisition.wait_until is not None and acquisition.wait_until <= now:
        return "timed out"
    if acquisition.slots > state.value:
        return "too many"
    return "closed" if state.closed else "buried"
