"""SharedLimit: a limit of several processes, as the threads of this process share it.

A change is made under two locks: a mutex for the threads here, and that of the journal for other
processes; neither is held while waiting for the other. Before a change is made, the state is
brought up to date: what others wrote is applied, expired holds and waits are ended, and so
is what could not be withdrawn before.

The changes themselves are in `_operations`, the rules in `_state`; where the records are written
is up to the journal.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from slotwise._core import events as hooks_of
from slotwise._core import fork
from slotwise._core.adaptive import Change
from slotwise._core.messages import INTERRUPTED
from slotwise._ledger import NEVER
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, posted
from slotwise._wait.section import lock
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes import _messages
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._claims import ProcessClaim
from slotwise.processes._journal import Busy, Damaged, Journal
from slotwise.processes._local_claims import LocalClaims
from slotwise.processes._state import Declared, State

T = TypeVar("T")

# Pauses between two tries of the journal's lock: others hold it for microseconds; after a second,
# somebody was probably stopped in the middle of a change.
_PAUSE, _LONG_PAUSE = 20e-6, 5e-3

# How long to wait for that lock: if the caller has no timeout, and in a timer.
LOCK_TIMEOUT = 30.0
TIMER_LOCK_TIMEOUT = 0.05
_RETRY_AFTER = 0.2  # when a timer tries again

# Report at most this many changes of adaptive values that were not made by a release.
_MOVES = 100


class Interrupted(RuntimeError):
    """A signal handler or finalizer interrupted a change, and asked for another one."""


class _Outdated(Exception):
    """What is written is from before the last boot."""


class SharedLimit:
    """The state of a limit, the claims of this process in it, and its journal."""

    # Between any two changes:
    #   F1  while a claim of this process is in it, the journal is open
    #   F2  while a claim of this process is in it, the alarm is set for the next deadline, or
    #       earlier

    def __init__(self, journal: Journal, name: str, public_name: str | None) -> None:
        self.journal = journal
        self.name = name
        self.public_name = public_name  # None if it is private
        self.state: State | None = None  # as this process last read it
        self.claims = LocalClaims(self)
        self.woken = self.claims.woken
        self.now, self._wall_us = 0.0, 0  # the time of the change that is being made
        self._mutex = fork.new_lock()
        self._changing = False
        self._is_created = False  # whether everybody is to be told that it was just created
        self._abandoned = False
        # What the next change has to do first: it interrupted another change, or failed. Doing it
        # twice does no harm.
        self._pending: deque[Callable[[], object]] = deque()
        self._deadline = NEVER  # when time alone changes something next
        self._alarm = NEVER
        # The changes of adaptive values that this process wrote, while hooks are there: the number
        # of the tier (0 for a semaphore), its key, and the change.
        self.moved: deque[tuple[int, Any, Change]] = deque(maxlen=_MOVES)

    # ----------------------------------------------------------------- its life

    def close_if_unused(self) -> bool:
        """Close the journal if this process doesn't use it; return whether it did."""
        # Without waiting: whoever has the mutex may be waiting for a lock of our caller's.
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if self.claims.by_id or self._changing or self._pending:
                return False
            self.journal.close()
            return True
        finally:
            self._mutex.release()

    def abandon(self) -> None:
        """In a forked child: everything here belongs to the parent."""
        self._abandoned = True
        self._changing = False  # set by a thread that does not exist here
        self.journal.close()

    def with_journal(self, look: Callable[[], T]) -> T:
        """Look at the journal while no other thread closes it."""
        with self._mutex:
            return look()

    # ----------------------------------------------------------------- changing

    def change(
        self,
        work: Callable[..., T],
        *args: object,
        declared: Declared = None,
        lock_timeout: float | None = LOCK_TIMEOUT,
    ) -> T:
        """Run ``work`` while nobody else changes the limit, then tell everybody concerned.

        Args:
            work: it changes the state with `write`.
            declared: create the limit with these tiers if it doesn't exist; None doesn't.
            lock_timeout: how long to wait for the journal's lock.
            args: passed to ``work``.

        Raises:
            Busy: the lock was taken for that long. Nothing has changed.
            UnknownSemaphore: it doesn't exist, and nothing was declared.
        """
        journal, since, retries = self.journal, time.monotonic(), False
        try:
            while True:
                with self._mutex:
                    if self._changing:
                        raise Interrupted(INTERRUPTED)
                    if self._abandoned:
                        raise journal.unknown()
                    self._changing = True
                    try:
                        if journal.begin(since, retries, create=declared is not None):
                            self.now, self._wall_us = journal.times()
                            state: Any = self.state
                            due = journal.is_behind or self._pending or state.is_due(self.now)
                            if not due or self._refresh(declared):
                                result = work(*args)
                                self._deadline = self._next_deadline()
                                break
                    except UnknownSemaphore:
                        self.claims.end_all()
                        raise
                    except BaseException:
                        journal.forget()  # it may be half done
                        raise
                    finally:
                        self._changing = False
                        journal.end()
                retries, waited = True, time.monotonic() - since
                if lock_timeout is not None and waited >= lock_timeout:
                    raise Busy(self.with_journal(partial(journal.give_up, since)))
                time.sleep(_PAUSE if waited < 1.0 else _LONG_PAUSE)
        finally:
            self._act()
        if self._pending:  # this was interrupted by a release
            self.finish_pending()
        return result

    def _refresh(self, declared: Declared) -> bool:
        """Bring the state up to date, under the lock; return False if the journal is gone now.

        One from before the last boot is removed: no process has survived that, and the clock of
        all deadlines has started anew.
        """
        journal = self.journal
        is_new = journal.is_new
        try:
            was_written = self._catch_up()
        except _Outdated:
            self.state = None
            journal.remove()
            return False
        if not was_written:
            self.claims.end_all()
            if declared is None:
                raise journal.unknown()
            self.state = State(self.name, declared, journal.boot)
            journal.create(self.state.snapshot())
            self._is_created = True
        state = self.current_state()
        if is_new:
            # If this file was moved away and back, it may contain claims that have just ended.
            claims = (*state.holders.values(), *state.waiting.values())
            self._end_next(each.key for each in claims if each.owner == journal.owner)
        journal.is_new = False
        if state.is_due(self.now):
            self.write("expire")
        while self._pending:
            self._pending[0]()
            self._pending.popleft()
        return True

    def _catch_up(self) -> bool:
        """Apply what others wrote; return False if nothing was ever written."""
        journal = self.journal
        if journal.is_new:
            self.claims.end_all()
        found = journal.read()
        if found is None:
            self.state = None
            return False
        snapshot, records = found
        try:
            if snapshot is not None and snapshot["boot"] != journal.boot:
                raise _Outdated
            state = self.current_state() if snapshot is None else State.restore(snapshot)
            events = [event for record in records for event in state.apply(record)]
        except _Outdated:
            raise
        except Exception as error:
            self.state = None  # it may be half changed
            journal.forget()
            raise journal.damaged(error) from error
        self.state = state
        now, _ = journal.times()
        if snapshot is None:
            self.claims.apply(events, state, now)
        else:
            self.claims.reconcile(state, now)
        return True

    def current_state(self) -> State:
        """Return the state; *in a change*, or after one."""
        assert self.state is not None, "only in a change"
        return self.state

    def write(self, verb: str, *args: object) -> None:
        """Apply a verb to the state, and commit its record; *in a change*."""
        state = self.current_state()
        refill_at = state.queue.next_refill() if state.has_rates else NEVER
        record = [verb, self.now, self._wall_us, *args]
        events = state.apply(record)
        self.journal.append(record, state.snapshot)
        if state.moved and hooks_of.hooks:
            self.moved += state.moved
        self.claims.apply(events, state, self.now, written_here=True)
        own = self.journal.owner
        if verb == "pause" or (state.has_rates and state.queue.next_refill() < refill_at):
            # Those who wait there have set their alarms for later, or none for its end.
            for owner in {claim.owner for claim in state.waiting.values()} - {own}:
                self.claims.notify(owner)
        # A dead process can't give back what it was granted: that goes to the next waiter.
        granted = [claim for event, claim in events if event == "granted" and claim.owner != own]
        if granted:
            self.drop_dead({claim.owner for claim in granted}, granted)

    def drop_dead(
        self, owners: Iterable[str] | None = None, granted: Iterable[ProcessClaim] = ()
    ) -> None:
        """End the holds and waits of dead processes; *in a change*.

        Of all processes, or of those whose claims were just ``granted``.
        """
        owners = self.current_state().owners if owners is None else owners
        dead = [owner for owner in owners if not self.journal.is_alive(owner)]
        if dead:
            undelivered = [claim.key for claim in granted if claim.owner in dead]
            self.write("drop dead", dead, undelivered)

    def _act(self) -> None:
        """Do what was decided under the locks, now that they are free."""
        if self._deadline < self._alarm:
            self._set_alarm(self._deadline)
        self.claims.act()
        if self._is_created:
            self._is_created = False
            self.journal.announce()

    # ------------------------------------------------- noticing what others wrote

    def check(self, *, thorough: bool) -> bool:
        """Read what others wrote; return False if another process kept the lock.

        ``thorough`` also ends the claims of dead processes.
        """
        try:
            # A change that does nothing brings the state up to date.
            self.change(self.drop_dead if thorough else bool, lock_timeout=TIMER_LOCK_TIMEOUT)
        except UnknownSemaphore:
            pass
        except Busy:
            return False
        except Damaged as error:  # nobody can be granted anything there
            told = error.args
            self._fail_waits(lambda _: BackendError(*told))  # each raises its own
            raise
        return True

    def other_owners(self) -> dict[str, int]:
        """Return the other processes that have claims in it, with their pids."""
        with self._mutex:
            owners = {} if self.state is None else self.state.owners
            own = self.journal.owner
            return {owner: pid for owner, (_, pid) in owners.items() if owner != own}

    # -------------------------------------------------------------- withdrawing

    def withdraw(self, acquisition: ProcessAcquisition) -> None:
        """End a wait, or a grant that its caller will not see, and pass its slots on.

        It never fails and may be called anywhere, in a garbage collection too. What can't be done
        now is done later.
        """
        self._end_next([acquisition.acquisition_id], undelivered=True)
        self.finish_pending()

    def end_later(self, acquisition_id: str) -> bool:
        """End a hold, for a caller that interrupted a change; return whether it is one of ours."""
        self._end_next([acquisition_id])
        return acquisition_id in self.claims.by_id

    def _end_next(self, ids: Iterable[str], *, undelivered: bool = False) -> None:
        """Have the next change end these, if it finds them."""
        self._pending += [partial(self._end, each, undelivered) for each in ids]

    def _end(self, acquisition_id: str, undelivered: bool) -> None:
        """End a claim that may wait, hold, or have ended; nobody has seen an undelivered grant."""
        state = self.current_state()
        if (
            acquisition_id in state.holders
            or acquisition_id in state.waiting
            or (undelivered and state.holds_nothing and acquisition_id in state.recent)
        ):
            self.write("withdraw", acquisition_id, undelivered)
        acquisition = self.claims.by_id.get(acquisition_id)
        if acquisition is not None:
            self.claims.leave(acquisition)

    def refused(self, acquisition: ProcessAcquisition) -> None:
        """A task was cancelled before its wake-up arrived: it withdraws by itself."""

    def finish_pending(self) -> None:
        """Do what was left to the next change, now or later; it never fails."""
        try:
            self.change(bool, lock_timeout=TIMER_LOCK_TIMEOUT)
        except Interrupted:
            pass  # the change that was interrupted does it when it is done
        except UnknownSemaphore:
            self._pending.clear()
        except (Busy, BackendError):
            self._set_alarm(clock.now() + _RETRY_AFTER)

    def _fail_waits(self, failure_of: Callable[[ProcessAcquisition], Exception | None]) -> bool:
        """End the waits that have a failure, in the journal too or later; False if interrupting."""
        with self._mutex:
            if self._changing:
                return False
            self._end_next(self.claims.fail(failure_of), undelivered=True)
        self._act()
        return True

    def fail_closed(self, _when: float = 0.0) -> None:
        """End the waits of instances that this process closed."""
        is_failed = self._fail_waits(
            lambda each: each.backend._closed_error() if each.backend.generation.closed else None
        )
        if not is_failed:  # a signal handler closed what it interrupted
            clock.timekeeper.call_at(clock.now(), self.fail_closed)
        elif self._pending:
            self.finish_pending()

    # -------------------------------------------------------------------- time

    def _next_deadline(self) -> float:
        """Return when time alone changes something next; `NEVER` if that is left to others.

        A hold or a wait expires then, a pause ends, or a bucket has enough for a waiter.
        """
        state = self.state
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
        self._alarm = self._deadline = NEVER
        try:
            self.change(bool, lock_timeout=TIMER_LOCK_TIMEOUT)
        except UnknownSemaphore:
            pass
        except (Busy, BackendError) as error:
            lock_error = error if isinstance(error, Busy) else None
            state, (now, _) = self.state, self.journal.times()
            if state is not None:  # the time of some is up, even though nothing can be changed
                self._fail_waits(
                    lambda waiter: (
                        _messages.timed_out(waiter, state, now, lock_error)
                        if waiter.wait_until is not None and waiter.wait_until < now
                        else None
                    )
                )
            self._set_alarm(clock.now() + _RETRY_AFTER)
