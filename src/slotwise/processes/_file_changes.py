"""Changing: how one semaphore is changed by the threads of many processes, one at a time.

A change is made under two locks, that of this object for the threads here and
that of the file for other processes; neither is kept while waiting for the
other. Whatever is done is done to a state that is up to date: what others
wrote is read, those whose time is up have ended, and what could not be given
back before is. What the change itself is, the room says.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from fcntl import LOCK_UN, lockf
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slotwise._core import fork
from slotwise._ledger import NEVER
from slotwise._wait import clock
from slotwise._wait.section import lock
from slotwise.errors import BackendError
from slotwise.processes import _messages
from slotwise.processes._folder import file_name
from slotwise.processes._journal import Damaged, Journal
from slotwise.processes._local_claims import AfterUnlock, LocalClaims
from slotwise.processes._messages import Busy, Interrupted, Missing, Retired
from slotwise.processes._state import Record, State

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess

T = TypeVar("T")

# Pauses between two tries of the file's lock, by how long one has waited. Others have it for
# microseconds; after a second, somebody seems to be stopped in the middle of a change.
_PAUSES = ((1.0, 20e-6), (NEVER, 5e-3))

# How long those wait for it who were given no limit, and how long a timer does.
PATIENCE = 30.0
TIMERS_PATIENCE = 0.05
_AGAIN = 0.2  # when a timer tries again


class FileChanges:
    """The file of a semaphore, as the threads of this process share it."""

    # Between any two changes:
    #   C1  while one of us holds or waits, the file is open, and so our byte in it locked
    #   C2  while one of us holds or waits, the alarm is set for the next deadline, or earlier

    def __init__(self, process: LocalProcess, name: str, suffix: str) -> None:
        self.process = process
        self.name = name
        self.suffix = suffix
        self.retired = False
        self._journal = Journal(process.folder, file_name(name, suffix), process.life)
        self.members = LocalClaims(process, name, self._journal.path)
        self._mutex = fork.new_lock()
        self._busy = False
        self._displaced = False  # whether the file is another than that ours are in
        self._made = False  # whether it was made, and something is due for that
        # Ids to be ended by the next change: theirs interrupted another, or failed.
        self._orphans: deque[str] = deque()
        self._alarm = NEVER

    @property
    def path(self) -> Path:
        return self._journal.path

    @property
    def state(self) -> State | None:
        """What was last known."""
        return self._journal.state

    def retire(self) -> bool:
        """Close the file if nobody of this process is here."""
        # Without waiting: who has it may be waiting for the lock of our caller.
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if self.members.all or self._busy or self._orphans:
                return False
            self.retired = True
            self._journal.close()
            return True
        finally:
            self._mutex.release()

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's."""
        self.retired = True
        self._busy = False  # another thread was, which does not exist here
        self._journal.close()

    def change(
        self,
        work: Callable[..., T],
        value: int | None = None,
        patience: float | None = PATIENCE,
        *args: object,
    ) -> T:
        """Run ``work`` while nobody else changes anything, and tell those concerned.

        Args:
            work: what to do, with the deeds and ``args``; it writes through `_write`.
            value: what a semaphore is made with that is not there yet; None makes none.
            patience: how long to try to get the file's lock.
            args: for ``work``.

        Raises:
            Busy: in vain. Nothing has changed.
            Missing: there is no such semaphore, and there is no value to make it.
        """
        deeds: AfterUnlock | None = None
        done = False
        since = 0.0  # when it first waited for the file's lock
        try:
            while True:
                with self._mutex:
                    if self.retired:
                        raise Retired
                    if self._busy:
                        raise Interrupted
                    journal = self._journal
                    self._busy = True
                    try:
                        if journal.fd < 0:
                            deeds = AfterUnlock(clock.now())
                            self._open(deeds, value)
                        if since and not journal.is_in_place():
                            journal.close()  # whoever has its lock
                        elif since and journal.is_anothers_turn(since, time.monotonic()):
                            pass  # not even a try: it would only be in the way
                        elif journal.try_lock():
                            deeds = AfterUnlock(clock.now())
                            if (
                                journal.is_current()  # and nothing to do: the usual case
                                and not self._orphans
                                and not self.known().is_due(deeds.now)
                            ) or self._refresh(deeds, value, since):
                                if since:
                                    journal.stop_knocking(since)
                                result = work(deeds, *args)
                                deeds.alarm = self._next_deadline()
                                done = True
                                return result
                        else:
                            # At once: one that lives from slice to slice of a busy machine
                            # would be overtaken until it comes to its second try.
                            now = time.monotonic()
                            since = since or now
                            journal.knock(since, now)
                    except BaseException:
                        journal.sound = False  # half done, perhaps: read it again
                        raise
                    finally:
                        self._busy = False
                        # Not through a method of ours: a signal handler may raise where one
                        # begins, and the file would stay locked.
                        if journal.fd >= 0:
                            lockf(journal.fd, LOCK_UN, 1, 0)
                now = time.monotonic()
                since = since or now
                waited = now - since
                if patience is not None and waited >= patience:
                    raise Busy(self._go_away(since))
                time.sleep(next(pause for until, pause in _PAUSES if waited < until))
        finally:
            if deeds is not None:
                if deeds.alarm < self._alarm:
                    self._ring_by(deeds.alarm)
                if deeds.wake or deeds.hints or deeds.lost:
                    self.members.act(deeds)
            if done and self._orphans:  # somebody interrupted this
                self._see_to_orphans()
            if self._made:
                self._made = False
                self.process.sweeper.sweep_some()

    def _go_away(self, since: float) -> int | None:
        """Let nobody wait for one who has given up: the pid of who has the lock."""
        with self._mutex:
            if self.retired or self._journal.fd < 0:
                return None
            self._journal.stop_knocking(since)
            return self._journal.lock_holder()

    def _refresh(self, deeds: AfterUnlock, value: int | None, since: float) -> bool:
        """Bring the state up to date, under the lock; False if that has to be taken anew."""
        journal = self._journal
        if journal.is_anothers_turn(since, time.monotonic()):
            return False
        if not journal.is_in_place():
            journal.close()
            return False
        try:
            events = journal.catch_up()
        except Damaged as damage:
            raise _messages.damaged(journal.path, damage) from damage
        if journal.state is None:
            if value is None:
                self.members.end_all(deeds)
                raise Missing
            self._displaced = self._made = True
            journal.create(State(self.name, value, self.process.boot))
            # Should this be in the place of one that was deleted, its holders have to learn it.
            deeds.hints = self.process.post.neighbours()
        state = self.known()
        if self._displaced:
            self.members.end_all(deeds)
            # Back in its place, it may know of some whom we have told otherwise.
            own = self.process.owner
            known = (*state.holders.values(), *state.waiting.values())
            self._orphans += [entry.acquisition_id for entry in known if entry.owner == own]
            self._displaced = False
        if events is None:
            self.members.reconcile(state, deeds)
            if state.boot != self.process.boot:
                self.write(deeds, "reboot", self.process.boot)
        elif events:
            self.members.note(events, state, deeds)
        if state.is_due(deeds.now):
            self.write(deeds, "tick")
        while self._orphans:
            self._end(self._orphans[0], deeds)
            self._orphans.popleft()
        return True

    def _open(self, deeds: AfterUnlock, value: int | None) -> None:
        """Open the file, at first or in the place of one that was deleted or moved.

        Who has no value to make it with makes none: a timer, for one, that looks after
        a semaphore which was removed.
        """
        self._displaced = True
        folder = self.process.folder
        create = value is not None
        if create or folder.is_there():
            folder.follow()
            if self._journal.open(create=create):
                return
        self.members.end_all(deeds)
        raise Missing

    def known(self) -> State:
        state = self._journal.state
        assert state is not None, "asked for outside of a change"
        return state

    def write(self, deeds: AfterUnlock, verb: str, *args: object) -> None:
        record: Record = [verb, deeds.now, time.time_ns() // 1000, *args]
        events = self._journal.write(record)
        self.members.note(events, self.known(), deeds, told_by_us=True)
        if deeds.hints:
            # Who was granted something and is dead can't give it back: it goes to the next.
            granted = {entry.owner for word, entry in events if word == "granted"}
            dead = [owner for owner in granted if not self._is_alive(owner)]
            if dead:
                self.write(deeds, "bury", dead)

    def _is_alive(self, owner: str) -> bool:
        return self._journal.is_alive(int(owner[1:], 16))

    def bury_the_dead(self, deeds: AfterUnlock) -> None:
        """End what processes hold, or wait for, that are no more."""
        dead = [owner for owner in self.known().owners if not self._is_alive(owner)]
        if dead:
            self.write(deeds, "bury", dead)

    def hear(self) -> None:
        """Learn what others wrote, without the file's lock: a hint came."""
        deeds = AfterUnlock(clock.now())
        with self._mutex:
            if self._busy or self.retired or not self.members.all or self._journal.fd < 0:
                return
            self._busy = True
            try:
                events = self._journal.catch_up()
                if events is not None:
                    self.members.note(events, self.known(), deeds)
                elif self._journal.state is not None:
                    self.members.reconcile(self.known(), deeds)
                deeds.alarm = self._next_deadline()
            except Damaged:
                pass  # read while it was written; who has the lock will tell
            finally:
                self._busy = False
        if deeds.alarm < self._alarm:
            self._ring_by(deeds.alarm)
        self.members.act(deeds)
        if self._orphans:
            self._see_to_orphans()

    # ------------------------------------------------------------- left-overs

    def withdraw(self, acquisition_id: str) -> None:
        """End a wait or a hold that nobody will see to: leave the line, or hand the slots on.

        It never fails and may be called anywhere, by a garbage collection too.
        What can't be done now is done later.
        """
        self._orphans.append(acquisition_id)
        self._see_to_orphans()

    def _see_to_orphans(self) -> None:
        try:
            self.change(_nothing, None, TIMERS_PATIENCE)
        except Interrupted:
            pass  # whoever is at it looks here when it is done
        except (Missing, Retired):
            self._orphans.clear()
        except (Busy, BackendError):
            self._ring_by(clock.now() + _AGAIN)

    def _end(self, acquisition_id: str, deeds: AfterUnlock) -> None:
        """End what may wait, hold, or have ended."""
        state = self.known()
        acquisition = self.members.all.get(acquisition_id)
        if acquisition_id in state.holders or acquisition_id in state.waiting:
            # Ours hears nothing of it: neither is it a loss, nor does anybody wait.
            self.members.all.pop(acquisition_id, None)
            try:
                self.write(deeds, "withdraw", acquisition_id)
            except BaseException:
                if acquisition is not None:
                    self.members.all[acquisition_id] = acquisition
                raise
        elif acquisition is not None:
            del self.members.all[acquisition_id]
        if acquisition is not None and not acquisition.holds and acquisition.waker is not None:
            self.members.waiting -= 1

    # -------------------------------------------------------------------- time

    def _next_deadline(self) -> float:
        """When somebody's time is up, if one of us has to see to that."""
        state = self._journal.state
        if state is None or state.deadlines is None or not self.members.all:
            return NEVER
        return state.next_deadline()

    def _ring_by(self, when: float) -> None:
        """Set the alarm; not under the mutex.

        Who has the lock of timers may be interrupted by a garbage collection that withdraws
        something here, and waits for the mutex.
        """
        with lock:
            if when < self._alarm:
                self._alarm = when
                clock.timekeeper.call_at(when, self._ring)

    def _ring(self, when: float) -> None:
        """End the holds and the waits whose time is up: `change` does, before all else."""
        if when != self._alarm:
            return  # an earlier alarm has been set since and has seen to this
        self._alarm = NEVER
        try:
            self.change(_nothing, None, TIMERS_PATIENCE)
        except (Busy, BackendError) as error:
            self._give_up_overdue(error if isinstance(error, Busy) else None)
            self._ring_by(clock.now() + _AGAIN)
        except (Missing, Retired):
            pass

    def fail_closed(self, _when: float = 0.0) -> None:
        """End the waits of instances that this process closed; the file is told, or later is."""
        deeds = AfterUnlock(clock.now())
        with self._mutex:
            interrupts = self._busy  # a signal handler closes what it interrupted
            if not interrupts and not self.retired and self._journal.state is not None:
                self._orphans += self.members.give_up_closed(self._journal.state, deeds)
        if interrupts:
            clock.timekeeper.call_at(deeds.now, self.fail_closed)
            return
        self.members.act(deeds)
        if self._orphans:
            self._see_to_orphans()

    def _give_up_overdue(self, stuck: Busy | None) -> None:
        """Let nobody wait longer than it wanted because the file can't be changed just now."""
        deeds = AfterUnlock(clock.now())
        with self._mutex:
            if not self._busy and not self.retired and self._journal.state is not None:
                self._orphans += self.members.give_up_overdue(self._journal.state, deeds, stuck)
        self.members.act(deeds)


def _nothing(_: AfterUnlock) -> None: ...
