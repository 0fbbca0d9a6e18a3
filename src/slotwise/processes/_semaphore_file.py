"""SemaphoreFile: change one semaphore's file, one thread and one process at a time.

A change is made under two locks: a mutex for the threads here, and the file's lock for other
processes; neither is held while waiting for the other. Before a change is made, the state is
brought up to date: what others wrote is applied, expired holds and waits are ended, and so
is what could not be withdrawn before.

The changes themselves are in `_operations`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from fcntl import LOCK_UN, lockf
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core import events as hooks_of
from slotwise._core import fork
from slotwise._core.adaptive import Change
from slotwise._ledger import NEVER
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, posted
from slotwise._wait.section import lock
from slotwise._wait.woken import Woken
from slotwise.errors import BackendError
from slotwise.processes import _messages
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._claims import ProcessClaim
from slotwise.processes._errors import Busy, Interrupted, Missing, Retired
from slotwise.processes._filenames import PRIVATE_SUFFIXES, filename_of, key_of
from slotwise.processes._journal import Damaged, Journal
from slotwise.processes._local_claims import AfterUnlock, LocalClaims
from slotwise.processes._lock_queue import LockQueue
from slotwise.processes._locked_file import LockedFile
from slotwise.processes._state import State

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess

T = TypeVar("T")

# Pauses between two tries of the file's lock, by how long this has gone on. Others hold it for
# microseconds; after a second, somebody was probably stopped in the middle of a change.
_PAUSES = ((1.0, 20e-6), (NEVER, 5e-3))

# How long to wait for the file's lock: if the caller has no timeout, and in a timer.
LOCK_TIMEOUT = 30.0
TIMER_LOCK_TIMEOUT = 0.05
_RETRY_AFTER = 0.2  # when a timer tries again

# Report at most this many changes of adaptive values that were not made by a release.
_MOVES = 100


class SemaphoreFile:
    """A semaphore's file, as the threads of this process share it."""

    # Between any two changes:
    #   F1  while a claim of this process is in it, the file is open, and our liveness byte locked
    #   F2  while a claim of this process is in it, the alarm is set for the next deadline, or
    #       earlier

    def __init__(self, process: LocalProcess, name: str, suffix: str) -> None:
        self.process = process
        self.name = name
        self.suffix = suffix
        self.public_name = None if suffix in PRIVATE_SUFFIXES else name
        self.retired = False
        filename = filename_of(name, suffix)
        self._file = LockedFile(process.directory, filename, process.liveness_byte)
        self._lock_queue = LockQueue(self._file)
        self._journal = Journal(self._file)
        self.claims = LocalClaims(process, key_of(name, suffix), self.public_name, self._file.path)
        self._mutex = fork.new_lock()
        self._changing = False
        self._replaced = False  # whether our claims are in another file than the open one
        self._created = False  # whether it was just created, and the directory is to be swept
        # What the next change has to do first: it interrupted another change, failed, or could
        # wait. Doing it twice does no harm.
        self._pending: deque[Callable[[AfterUnlock], None]] = deque()
        self._alarm = NEVER
        # The changes of adaptive values that this process wrote, while hooks are there.
        self._moved: deque[tuple[int, Any, Change]] = deque(maxlen=_MOVES)

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def state(self) -> State | None:
        """The state as this process last read it."""
        return self._journal.state

    def take_changes(self) -> list[tuple[int, Any, Change]]:
        """Remove and return the changes of adaptive values that this process wrote.

        Each with the number of its tier (0 for a semaphore) and its key.
        """
        taken = []
        while self._moved:
            taken.append(self._moved.popleft())
        return taken

    @property
    def woken(self) -> Woken:
        return self.claims.woken

    # --------------------------------------------------------------- its life

    def retire(self) -> bool:
        """Close the file if this process doesn't use it; return whether it did."""
        # Without waiting: whoever has the mutex may be waiting for a lock of our caller's.
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if self.claims.by_id or self._changing or self._pending:
                return False
            self.retired = True
            self._close()
            return True
        finally:
            self._mutex.release()

    def abandon(self) -> None:
        """In a forked child: everything here belongs to the parent."""
        self.retired = True
        self._changing = False  # set by a thread that does not exist here
        self._close()

    def _close(self) -> None:
        self._journal.in_sync = False
        self._file.close()

    def invalidate_if_replaced(self) -> bool:
        """Return whether the file was deleted or replaced; the next change opens the new one."""
        if self._file.is_in_place():
            return False
        self._journal.in_sync = False
        return True

    def remove(self) -> None:
        """Delete the file; *in a change*."""
        self._file.remove()

    def touch(self) -> None:
        """Update the time of the file, for programs that delete old temporary files."""
        with self._mutex:
            if self.claims.by_id and self._file.fd >= 0:
                os.utime(self._file.fd)

    def age(self) -> float:
        """Return the seconds since anybody changed it; `NEVER` if it isn't open."""
        with self._mutex:
            fd = self._file.fd
            return NEVER if fd < 0 else time.time() - os.fstat(fd).st_mtime

    def lock_holder(self) -> int | None:
        """Return the pid of the process that has the file's lock."""
        with self._mutex:
            if self.retired or (self._file.fd < 0 and not self._file.open(create=False)):
                return None
            return self._file.lock_holder()

    # ----------------------------------------------------------------- changing

    def change(
        self,
        work: Callable[..., T],
        declared: Any = None,
        lock_timeout: float | None = LOCK_TIMEOUT,
        *args: object,
        in_place: bool = False,
    ) -> T:
        """Run ``work`` while nobody else changes the file, then tell everybody concerned.

        Args:
            work: called with an AfterUnlock and ``args``; it changes the state with `write`.
            declared: create the semaphore with this value if it doesn't exist; None doesn't.
            lock_timeout: how long to wait for the file's lock.
            args: passed to ``work``.
            in_place: only in the file that the path leads to now, so that no two files are used
                at the same time. Without it, a file that was moved away is noticed later.

        Raises:
            Busy: the lock was taken for that long. Nothing has changed.
            Missing: the semaphore doesn't exist, and no value was given.
        """
        after: AfterUnlock | None = None
        done = False
        since = 0.0  # when it found the file's lock taken
        try:
            while True:
                with self._mutex:
                    if self.retired:
                        raise Retired
                    if self._changing:
                        raise Interrupted
                    file, journal = self._file, self._journal
                    self._changing = True
                    try:
                        if file.fd < 0:
                            after = AfterUnlock(clock.now())
                            self._open(after, declared)
                        if since and self._has_to_queue(since):
                            pass  # don't even try: it would only be in the way
                        elif file.try_lock():
                            after = AfterUnlock(clock.now())
                            state: Any = journal.state
                            if (
                                journal.is_current()  # and nothing is due: the usual case
                                and (file.is_in_place() if in_place else file.is_linked())
                                and not self._pending
                                and not state.is_due(after.now)
                            ) or self._refresh(after, declared, since):
                                if since:
                                    self._lock_queue.leave(since)
                                result = work(after, *args)
                                if self.claims.by_id:
                                    after.deadline = self.current_state().next_deadline()
                                done = True
                                return result
                        else:
                            # At once: on a busy machine, a process that seldom runs would be
                            # overtaken before its second try.
                            now = time.monotonic()
                            since = since or now
                            self._lock_queue.announce(since, now)
                    except BaseException:
                        journal.in_sync = False  # it may be half done: read it again
                        raise
                    finally:
                        self._changing = False
                        # Not in a method: a signal handler may raise when one is entered, and the
                        # file would stay locked.
                        fd = file.fd
                        if fd >= 0:
                            lockf(fd, LOCK_UN, 1, 0)
                        if after is not None and after.wake:
                            self.claims.post(after)
                now = time.monotonic()
                since = since or now
                waited = now - since
                if lock_timeout is not None and waited >= lock_timeout:
                    raise Busy(self._stop_queueing(since))
                time.sleep(next(pause for until, pause in _PAUSES if waited < until))
        finally:
            if after is not None:
                if after.deadline < self._alarm:
                    self._set_alarm(after.deadline)
                if self.claims.to_wake or after.notify or after.lost:
                    self.claims.deliver(after)
            if done and self._pending:  # this was interrupted by a release
                self.finish_pending()
            if self._created:
                self._created = False
                self.process.sweeper.sweep_some()

    def _has_to_queue(self, since: float) -> bool:
        """Return whether the lock must not be tried now, after it was found taken."""
        if not self._file.is_in_place():
            self._close()  # then it doesn't matter who has its lock
            return True
        return self._lock_queue.is_anothers_turn(since, time.monotonic())

    def _stop_queueing(self, since: float) -> int | None:
        """Leave the lock queue; return the pid of the process that has the lock."""
        with self._mutex:
            if self.retired or self._file.fd < 0:
                return None
            self._lock_queue.leave(since)
            return self._file.lock_holder()

    def _open(self, after: AfterUnlock, declared: Any) -> None:
        """Open the file; create it if there is a value for it."""
        self._replaced = True
        directory = self.process.directory
        create = declared is not None
        if create or directory.path_exists():
            directory.reopen()
            if self._file.open(create=create):
                return
        self.claims.end_all(after)
        raise Missing

    def _refresh(self, after: AfterUnlock, declared: Any, since: float) -> bool:
        """Bring the state up to date, under the lock; return False if the lock must be released."""
        journal = self._journal
        if self._lock_queue.is_anothers_turn(since, time.monotonic()):
            return False
        if not self._file.is_in_place():
            self._close()
            return False
        try:
            events = journal.catch_up()
        except Damaged as damage:
            raise _messages.damaged(self.path, damage) from damage
        if journal.state is None:
            if declared is None:
                self.claims.end_all(after)
                raise Missing
            self._replaced = self._created = True
            journal.create(State(self.name, declared, self.process.boot))
            # If it replaces a file that was deleted, the holders of that have to notice.
            after.notify = self.process.wakeups.other_owners()
        state = self.current_state()
        if self._replaced:
            self.claims.end_all(after)
            # If this file was moved away and back, it may contain claims that have just ended.
            own = self.process.owner
            claims = (*state.holders.values(), *state.waiting.values())
            self._withdraw_next(each.key for each in claims if each.owner == own)
            self._replaced = False
        if events is None:
            self.claims.reconcile(state, after)
            if state.boot != self.process.boot:
                self.write(after, "reboot", self.process.boot)
        elif events:
            self.claims.apply(events, state, after)
        if state.is_due(after.now):
            self.write(after, "expire")
        while self._pending:
            self._pending[0](after)
            self._pending.popleft()
        return True

    def current_state(self) -> State:
        """Return the state; *in a change*, or after one."""
        state = self._journal.state
        assert state is not None, "only in a change"
        return state

    def write(self, after: AfterUnlock, verb: str, *args: object) -> None:
        """Commit a record; *in a change*."""
        journal = self._journal
        state: Any = journal.state
        has_rates = state.has_rates
        refill_at = state.queue.next_refill() if has_rates else NEVER
        events = journal.write([verb, after.now, time.time_ns() // 1000, *args])
        if state.moved and hooks_of.hooks:
            self._moved += state.moved
        self.claims.apply(events, state, after, written_here=True)
        if verb == "pause" or (has_rates and state.queue.next_refill() < refill_at):
            # Those who wait there have set their alarms for later, or none for its end.
            waiting = {claim.owner for claim in state.waiting.values()} - {self.process.owner}
            after.notify = (after.notify or set()) | waiting
        if after.notify:
            # A dead process can't give back what it was granted: that goes to the next waiter.
            granted = [claim for event, claim in events if event == "granted"]
            self._drop_dead({claim.owner for claim in granted}, after, granted)

    def drop_dead(self, after: AfterUnlock) -> None:
        """End the holds and waits of dead processes; *in a change*."""
        self._drop_dead(self.current_state().owners, after)

    def _drop_dead(
        self, owners: Iterable[str], after: AfterUnlock, granted: Iterable[ProcessClaim] = ()
    ) -> None:
        dead = [owner for owner in owners if not self._file.is_alive(int(owner[1:], 16))]
        if dead:
            undelivered = [claim.key for claim in granted if claim.owner in dead]
            has_rates = self.current_state().has_rates
            self.write(after, "drop dead", dead, *((undelivered,) if has_rates else ()))

    # ------------------------------------------------- noticing what others wrote

    def check(self, *, thorough: bool) -> bool:
        """Read what others wrote, while a claim of ours is in it; return False if Busy.

        ``thorough`` also ends the claims of dead processes.
        """
        try:
            # What can't be read without the lock was being written, or was emptied or damaged.
            if thorough or self._was_replaced() or not self._catch_up():
                self.change(self.drop_dead, None, TIMER_LOCK_TIMEOUT)
        except (Missing, Retired):
            pass
        except Busy:
            return False
        except BackendError as error:
            if isinstance(error.__cause__, Damaged):
                self._fail_waits(error)
            raise
        return True

    def _fail_waits(self, error: BackendError) -> None:
        """End the waits of this process: nobody can be granted anything in a damaged file."""
        after = AfterUnlock(clock.now())
        with self._mutex:
            if not self._changing and not self.retired:
                self._withdraw_next(self.claims.fail_waits(error, after), undelivered=True)
        self.claims.deliver(after)

    def _was_replaced(self) -> bool:
        with self._mutex:
            return not self.retired and self.invalidate_if_replaced()

    def _catch_up(self) -> bool:
        """Read what others wrote, without the file's lock; return False if it can't be read."""
        after = AfterUnlock(clock.now())
        was_read = True
        with self._mutex:
            if self._changing or self.retired or not self.claims.by_id or self._file.fd < 0:
                return True
            self._changing = True
            try:
                events = self._journal.catch_up()
                if events is not None:
                    self.claims.apply(events, self.current_state(), after)
                elif self._journal.state is not None:
                    self.claims.reconcile(self.current_state(), after)
                else:
                    was_read = False
                after.deadline = self._next_deadline()
            except Damaged:
                was_read = False
            finally:
                self._changing = False
                self.claims.post(after)
        if after.deadline < self._alarm:
            self._set_alarm(after.deadline)
        self.claims.deliver(after)
        if self._pending:
            self.finish_pending()
        return was_read

    def other_owners(self) -> dict[str, int]:
        """Return the other processes that have claims in it, with their pids."""
        with self._mutex:
            state = self._journal.state
            owners = {} if state is None else state.owners
            return {owner: pid for owner, (_, pid) in owners.items() if owner != self.process.owner}

    # -------------------------------------------------------------- withdrawing

    def withdraw(self, acquisition: ProcessAcquisition) -> None:
        """End a wait, or a grant that its caller will not see, and pass its slots on.

        It never fails and may be called anywhere, in a garbage collection too. What can't be done
        now is done later.
        """
        self._withdraw_next([acquisition.acquisition_id], undelivered=True)
        self.finish_pending()

    def withdraw_id(self, acquisition_id: str) -> None:
        """Like `withdraw`, for a holder."""
        self._withdraw_next([acquisition_id])
        self.finish_pending()

    def withdraw_later(self, acquisition_id: str) -> bool:
        """Like `withdraw_id`, for a caller that interrupted a change; return whether it is ours."""
        self._withdraw_next([acquisition_id])
        return acquisition_id in self.claims.by_id

    def _withdraw_next(self, ids: Iterable[str], *, undelivered: bool = False) -> None:
        """Have the next change end these, if it finds them."""
        self._pending += [partial(self._withdraw, each, undelivered) for each in ids]

    def refused(self, acquisition: ProcessAcquisition) -> None:
        """A task was cancelled before its wake-up arrived: it withdraws by itself."""

    def finish_pending(self) -> None:
        """Do what was left to the next change, now or later; it never fails."""
        try:
            self.change(_nothing, None, TIMER_LOCK_TIMEOUT)
        except Interrupted:
            pass  # the change that was interrupted does it when it is done
        except (Missing, Retired):
            self._pending.clear()
        except (Busy, BackendError):
            self._set_alarm(clock.now() + _RETRY_AFTER)

    def _withdraw(self, acquisition_id: str, undelivered: bool, after: AfterUnlock) -> None:
        """End a claim that may wait, hold, or have ended; nobody has seen an undelivered grant."""
        state: Any = self.current_state()
        by_id = self.claims.by_id
        acquisition = by_id.get(acquisition_id)
        refund = undelivered and state.has_rates
        is_known = acquisition_id in state.holders or acquisition_id in state.waiting
        if is_known or (refund and state.holds_nothing and acquisition_id in state.recent):
            # Removed first, so that it isn't told: it is not a loss, and nobody waits.
            by_id.pop(acquisition_id, None)
            try:
                self.write(after, "withdraw", acquisition_id, *((True,) if refund else ()))
            except BaseException:
                if acquisition is not None:
                    by_id[acquisition_id] = acquisition
                raise
        elif acquisition is not None:
            del by_id[acquisition_id]
        if acquisition is not None:
            acquisition.end()
            if not acquisition.holds and acquisition.waker is not None:
                self.claims.waiting -= 1

    # ------------------------------------------------------------------- rates

    def charge(self, acquisition_id: str, costs: Mapping[str, int], after: AfterUnlock) -> bool:
        """Correct what an acquisition took of rates; *in a change*. False if nobody knows it."""
        state: Any = self.current_state()
        if not state.can_settle(acquisition_id, after.now):
            return False
        self.write(
            after,
            "charge",
            acquisition_id,
            [(state.index_of_rate(name), cost) for name, cost in costs.items()],
        )
        return True

    def charge_next(self, acquisition_id: str, costs: Mapping[str, int]) -> None:
        """Have the next change correct what a holder took of rates."""
        self._pending.append(partial(self._charge, acquisition_id, costs))

    def _charge(self, acquisition_id: str, costs: Mapping[str, int], after: AfterUnlock) -> None:
        self.charge(acquisition_id, costs, after)

    # -------------------------------------------------------------------- time

    def _next_deadline(self) -> float:
        """Return when time alone changes something next; `NEVER` if that is left to others.

        A hold or a wait expires then, a pause ends, or a bucket has enough for a waiter.
        """
        state = self._journal.state
        return NEVER if state is None or not self.claims.by_id else state.next_deadline()

    def _set_alarm(self, when: float) -> None:
        """Set the alarm, if it isn't set for earlier; not under the mutex.

        A garbage collection can interrupt a thread that has the timers' lock, and withdraw
        something here, which takes the mutex.
        """
        with lock:
            if when < self._alarm:
                self._alarm = when
                clock.timekeeper.call_at(when, self._on_alarm)
        if posted:  # the thread for timers couldn't be started, which is logged
            deliver_posted()

    def _on_alarm(self, when: float) -> None:
        """End what has expired: `change` does that before anything else."""
        if when != self._alarm:
            return  # an earlier alarm was set since, and did this
        self._alarm = NEVER
        try:
            self.change(_nothing, None, TIMER_LOCK_TIMEOUT)
        except (Busy, BackendError) as error:
            self._fail_overdue(error if isinstance(error, Busy) else None)
            self._set_alarm(clock.now() + _RETRY_AFTER)
        except (Missing, Retired):
            pass

    def _fail_overdue(self, lock_error: Busy | None) -> None:
        """End the waits whose time is up, even though the file can't be changed just now."""
        after = AfterUnlock(clock.now())
        with self._mutex:
            state = self._journal.state
            if not self._changing and not self.retired and state is not None:
                overdue = self.claims.fail_overdue(state, after, lock_error)
                self._withdraw_next(overdue, undelivered=True)
        self.claims.deliver(after)

    def fail_closed(self, _when: float = 0.0) -> None:
        """End the waits of instances that this process closed, in the file too or later."""
        after = AfterUnlock(clock.now())
        with self._mutex:
            interrupts = self._changing  # a signal handler closed what it interrupted
            state = self._journal.state
            if not interrupts and not self.retired and state is not None:
                self._withdraw_next(self.claims.fail_closed(state, after), undelivered=True)
        if interrupts:
            clock.timekeeper.call_at(after.now, self.fail_closed)
            return
        self.claims.deliver(after)
        if self._pending:
            self.finish_pending()


def _nothing(_: AfterUnlock) -> None: ...
