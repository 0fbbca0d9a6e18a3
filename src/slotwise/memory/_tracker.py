"""Tracker: what all instances of one name share. A ledger, under the lock, with its alarm.

Every verb here decides under the lock and acts after it: wakers are collected
inside and woken outside. A wake that cannot be delivered hands the slot on.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakMethod

from slotwise import _clock
from slotwise._ledger import NEVER, Ledger
from slotwise.errors import AcquireTimeout, SemaphoreClosed
from slotwise.memory import _log
from slotwise.memory._lease import Lease
from slotwise.memory._wakers import Waker, wake
from slotwise.values import SemaphoreStats

if TYPE_CHECKING:
    from slotwise.memory._registry import Registry

# One lock for all ledgers and the registry. The interpreter runs one thread at
# a time anyhow and the quick lane needs no lock, so a lock for each semaphore
# would cost memory and an order in which to take them, and gain nothing.
lock = threading.Lock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )

# Holders whose ttl has ended and whose task is about to be cancelled for it.
# Who leaves the block or releases before that is taken out, and stays uncancelled.
condemned: dict[int | None, Lease] = {}

# Waits that ended inside a garbage collection, which may have interrupted
# somebody who has the lock. They are cleaned up by whoever leaves it next.
abandoned: deque[Lease] = deque()


class Tracker:
    """The shared state behind a name, or behind one private semaphore."""

    __slots__ = (
        "__weakref__",
        "alarm",
        "last_used",
        "ledger",
        "name",
        "registry",
        "retired",
        "values",
    )

    def __init__(
        self, name: str | None, ledger: Ledger[Lease], registry: Registry | None = None
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.registry = registry
        self.retired = False
        # The values that instances may have been made with; the first is the
        # one it was made with itself, the others came by resizing.
        self.values: tuple[int, ...] = (ledger.value,)
        self.last_used = _clock.glance.time
        self.alarm = NEVER  # when `_ring` is called next

    # ---------------------------------------------------------------- taking

    def request(self, lease: Lease, make_waker: Callable[[], Waker]) -> list[Lease]:
        """Ask for a lease, *with the lock held*: who is granted now, the lease last if it is.

        A lease that was not granted waits, and has a waker.
        """
        ledger = self.ledger
        if ledger.closed:
            raise self.closed_error()
        if lease.slots > ledger.value:
            raise self.never_fits_error(lease)
        timeout = lease.timeout
        now = 0.0 if timeout is None and ledger.deadlines is None else _clock.now()
        if timeout is None:
            granted = ledger.request(lease, now)
        elif timeout == 0:
            granted = [lease] if ledger.try_request(lease, now) else []
            if not granted:
                raise self.timeout_error(0.0)
        else:
            granted = ledger.request(lease, now, wait_until=now + timeout)
        if not granted or granted[-1] is not lease:
            lease.failure = None
            lease.waker = make_waker()
            if timeout is not None and now + timeout < self.alarm:
                self._set_alarm(now + timeout)
        if granted and ledger.deadlines is not None:
            self._start_ttls(granted, now)
        return granted

    def try_request(self, lease: Lease) -> bool:
        """Ask for a lease that will not wait, *with the lock held*."""
        ledger = self.ledger
        if ledger.closed:
            raise self.closed_error()
        if lease.slots > ledger.value:
            raise self.never_fits_error(lease)
        now = _clock.now()
        if not ledger.try_request(lease, now):
            return False
        self._start_ttls([lease], now)
        return True

    def withdraw(self, lease: Lease) -> None:
        """End a wait whose outcome nobody will see: leave the queue, or hand the grant on."""
        lock.acquire()
        try:
            granted = self._withdraw(lease)
        finally:
            unlock()
        deliver(granted)

    def abandon(self, lease: Lease) -> None:
        """`withdraw`, from inside a garbage collection: don't wait for the lock."""
        abandoned.append(lease)
        clean_up()

    def _withdraw(self, lease: Lease) -> list[Lease]:
        key, now = lease.key, self._now()
        if key in self.ledger.waiting:
            granted = self.ledger.cancel(key, now)
        else:
            granted = self.ledger.release(key, now)
        self._after_change(granted, now)
        return granted

    # ---------------------------------------------------------------- giving

    def release(self, lease: Lease) -> bool:
        """Free what a lease holds; False if it has ended before."""
        condemned.pop(lease.key, None)
        ledger = self.ledger
        # The pop decides between this caller, others that release the same
        # lease, and the end of its ttl: exactly one of them frees the slot.
        if ledger.holders.pop(lease.key, None) is None:
            return False
        self.last_used = _clock.glance.time
        lock.acquire()
        try:
            now = self._now()
            if ledger.deadlines is not None:
                ledger.deadlines.discard(lease.key)
            granted = ledger.give(lease, now)
            self._after_change(granted, now)
        finally:
            unlock()
        deliver(granted)
        _log.released(lease, self)
        return True

    def settle(self) -> None:
        """Look after a quick give that found the ledger's attention up."""
        lock.acquire()
        try:
            now = self._now()
            granted = self.ledger.settle(now)
            self._after_change(granted, now)
        finally:
            unlock()
        deliver(granted)

    def forget_deadline(self, key: int) -> None:
        """Take back the deadline of a quickly given lease that was not young any more."""
        with lock:
            if self.ledger.deadlines is not None:
                self.ledger.deadlines.discard(key)

    def _after_change(self, granted: list[Lease], now: float) -> None:
        if granted:
            if self.ledger.deadlines is not None:
                self._start_ttls(granted, now)
        elif self.ledger.closed and self.ledger.circulating == 0 and self.registry is not None:
            self.registry.forget(self)

    # ------------------------------------------------------ looking, steering

    def stats(self) -> SemaphoreStats:
        with lock:
            return self.snapshot()

    def snapshot(self) -> SemaphoreStats:
        """The statistics, *with the lock held*."""
        ledger = self.ledger
        return SemaphoreStats(ledger.in_use, ledger.value, len(ledger.waiting))

    def resize(self, value: int, declared: int) -> list[Lease]:
        """Change the value, *with the lock held*: those whose wait this ends.

        ``declared`` is the value that the instance was made with that asks.
        """
        ledger = self.ledger
        if ledger.closed:
            raise self.closed_error()
        now = self._now()
        self.values = (*dict.fromkeys((*self.values, declared, value)),)
        refused, granted = ledger.resize(value, now)
        for lease in refused:
            lease.failure = self.never_fits_error(lease)
        self._after_change(granted, now)
        return refused + granted

    def close(self) -> list[Lease]:
        """Close, *with the lock held*: those whose wait this ends."""
        waiters = self.ledger.close()
        for lease in waiters:
            lease.failure = self.closed_error()
        self._after_change([], 0.0)
        return waiters

    def retire(self) -> bool:
        """Stop for good if nobody is here, *with the lock held*; False otherwise."""
        self.retired = self.ledger.retire()
        return self.retired

    # ------------------------------------------------------------------ time

    def arm(self, when: float) -> None:
        """Have the alarm ring at ``when`` or earlier."""
        with lock:
            if when < self.alarm:
                self._set_alarm(when)

    def _start_ttls(self, leases: Iterable[Lease], now: float) -> None:
        for lease in leases:
            if lease.ttl is not None:
                lease.since = now
                if now + lease.ttl < self.alarm:
                    self._set_alarm(now + lease.ttl)

    def _set_alarm(self, when: float) -> None:
        self.alarm = when
        # Weakly: a semaphore that nobody holds, waits for or refers to may go.
        ring = WeakMethod(self._ring)

        def ring_if_alive() -> None:
            method = ring()
            if method is not None:
                method(when)

        _clock.timekeeper.call_at(when, ring_if_alive)

    def _ring(self, when: float) -> None:
        """End the holds and the waits whose time is up."""
        if when != self.alarm:
            return  # an earlier alarm has been set since and has seen to this
        lock.acquire()
        try:
            # Before the deadlines are looked at: a quick taker whose deadline
            # comes too late for this look finds no alarm set, and sets one.
            self.alarm = NEVER
            now = _clock.now()
            holders, waiters, granted = self.ledger.expire(now)
            for lease in waiters:
                lease.failure = self.timeout_error(lease.timeout or 0.0)
            for lease in holders:
                if lease.task is not None:
                    condemned[lease.key] = lease
            self._after_change(granted, now)
            next_deadline = self.ledger.next_deadline()
            if next_deadline < self.alarm:
                self._set_alarm(next_deadline)
        finally:
            unlock()
        for lease in holders:
            _log.expired(lease, self, now - (lease.since or now))
            if lease.task is not None:
                _cancel_in_its_loop(lease)
        deliver(waiters)
        deliver(granted)

    def _now(self) -> float:
        """The time, if anybody's runs here."""
        return 0.0 if self.ledger.deadlines is None else _clock.now()

    # ---------------------------------------------------------------- errors

    def timeout_error(self, waited: float) -> AcquireTimeout:
        ledger = self.ledger
        return AcquireTimeout(
            f"no slot of {self.display_name} in {waited:g} s: {ledger.in_use} of {ledger.value}"
            f" held, {len(ledger.waiting)} others waiting"
        )

    def closed_error(self) -> SemaphoreClosed:
        return SemaphoreClosed(f"{self.display_name} is closed")

    def never_fits_error(self, lease: Lease) -> ValueError:
        return ValueError(
            f"{lease.slots} slots asked of {self.display_name}, which has"
            f" {self.ledger.value}: that can never be granted"
        )

    @property
    def display_name(self) -> str:
        return "a private semaphore" if self.name is None else repr(self.name)


def unlock() -> None:
    """Release the lock, and see to what a garbage collection left while it was held."""
    lock.release()
    if abandoned:
        clean_up()


def clean_up() -> None:
    while abandoned and lock.acquire(blocking=False):
        granted: list[Lease] = []
        try:
            while abandoned:
                lease = abandoned.popleft()
                granted += lease.semaphore._tracker._withdraw(lease)
        finally:
            lock.release()
        deliver(granted)


def deliver(leases: Iterable[Lease]) -> None:
    """Wake those whose wait has ended, without the lock."""
    for lease in leases:
        if not wake(lease.waker):
            # Its event loop is closed. If this was a grant, the next one gets it.
            lease.semaphore._tracker.withdraw(lease)


def _cancel_in_its_loop(lease: Lease) -> None:
    """Cancel the task of an expired lease, unless it is done with it when its loop gets there."""
    task = lease.task
    assert task is not None

    def cancel() -> None:
        if condemned.pop(lease.key, None) is not None:
            task.cancel(f"the ttl of {lease.acquisition_id} ended after {lease.ttl:g} s")

    try:
        task.get_loop().call_soon_threadsafe(cancel)
    except RuntimeError:  # the loop is closed, and the task with it
        condemned.pop(lease.key, None)
