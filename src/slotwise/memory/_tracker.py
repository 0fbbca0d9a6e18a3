"""Tracker: what all instances of one name share. A ledger, under the lock, with its alarm.

Every verb here decides under the lock and acts after it: those whose wait has
ended are collected inside and woken outside. A grant that cannot be delivered
goes to the next.
"""

from __future__ import annotations

import asyncio
import os
import threading
from _thread import LockType
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from heapq import heappush
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakMethod

from slotwise import _clock
from slotwise._clock import glance
from slotwise._ledger import NEVER, Ledger, Pass
from slotwise.errors import AcquireTimeout, SemaphoreClosed
from slotwise.memory import _log
from slotwise.memory._lease import Lease, MemoryClaim
from slotwise.memory._wakers import Parcel, Waker, send
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

# What a garbage collection left to do. It may have interrupted somebody who has
# the lock, so it can't wait for it: whoever leaves the lock next does it.
abandoned: deque[tuple[Tracker, MemoryClaim | Pass]] = deque()

# A line is tidied when more than half of it, and more than this, has ended.
_FEW_ENDED = 32

_NO_DEADLINES: dict[Hashable, float] = {}


class Tracker(Ledger[MemoryClaim]):
    """The shared state behind a name, or behind one private semaphore.

    It is a ledger and not only has one: a name costs one object less that way,
    and the quick lane a look-up less. The verbs of the ledger want the lock held;
    those defined here take it themselves unless they say otherwise.
    """

    __slots__ = (
        "__weakref__",
        "alarm",
        "ended_tickets",
        "former_values",
        "home",
        "last_used",
        "name",
        "registry",
        "retired",
        "young_deadlines",
    )

    def __init__(
        self,
        value: int,
        name: str | None = None,
        registry: Registry | None = None,
        holders: dict[Hashable, MemoryClaim] | None = None,
    ) -> None:
        super().__init__(value, holders)
        self.name = name
        self.registry = registry
        self.retired = False
        # What it was made with and has been resized from, the oldest first.
        self.former_values: tuple[int, ...] = ()
        self.last_used = glance.time
        self.alarm = NEVER  # when `_ring` is called next
        # The ledger's, for the quick lane of semaphores with a ttl.
        self.young_deadlines = _NO_DEADLINES
        # The one event loop that may use the ledger's line without the lock.
        self.home: asyncio.AbstractEventLoop | None = None
        self.ended_tickets = 0  # about how many futures in the line are done

    def accepts(self, value: int) -> bool:
        """Whether an instance made with ``value`` is one of ours."""
        return value == self.value or value in self.former_values

    @property
    def is_resized(self) -> bool:
        """Whether it has another value than the one it was made with."""
        return bool(self.former_values) and self.former_values[0] != self.value

    # ---------------------------------------------------------------- taking

    def ask(self, claim: MemoryClaim, make_waker: Callable[[], Waker]) -> list[MemoryClaim]:
        """Ask for slots, *with the lock held*: who is granted now, the claim last if it is.

        A claim that is not granted waits, and has a waker.
        """
        if self.closed or claim.slots > self.value:
            raise self._refusal(claim)
        timeout = claim.timeout
        if timeout is None:
            now = 0.0 if self.deadlines is None else _clock.now()
            granted = self.request(claim, now)
        else:
            now = _clock.now()
            if timeout == 0:
                if not self.try_request(claim, now):
                    raise self._timeout_error(0.0)
                granted = [claim]
            else:
                granted = self.request(claim, now, wait_until=now + timeout)
        if granted and self.deadlines is not None:
            self._start_ttls(granted, now)
        if not granted or granted[-1] is not claim:
            claim.failure = None
            claim.waker = make_waker()
            if timeout is not None and now + timeout < self.alarm:
                self._set_alarm(now + timeout)
        return granted

    def ask_now(self, claim: MemoryClaim) -> bool:
        """Ask for slots without waiting, *with the lock held*."""
        if self.closed or claim.slots > self.value:
            raise self._refusal(claim)
        now = self._now()
        if not self.try_request(claim, now):
            return False
        self._start_ttls([claim], now)
        return True

    def withdraw(self, claim: MemoryClaim | Pass) -> None:
        """End a wait whose outcome nobody will see: leave the queue, or hand the grant on."""
        self.deliver(self._withdraw_locked(claim))

    def _withdraw_locked(self, claim: MemoryClaim | Pass) -> list[MemoryClaim]:
        lock.acquire()
        try:
            return self._withdraw(claim)
        finally:
            unlock()

    def abandon(self, claim: MemoryClaim | Pass) -> None:
        """`withdraw`, from inside a garbage collection: don't wait for the lock."""
        abandoned.append((self, claim))
        clean_up()

    def _withdraw(self, claim: MemoryClaim | Pass) -> list[MemoryClaim]:
        key, now = claim.key, self._now()
        if claim.named or not claim._slot_number:
            ended = self.cancel(key, now) if key in self.waiting else self.release(key, now)
        else:
            ended = self.give_number(claim._slot_number, now)
        self._after_change(ended, now)
        return ended

    # ---------------------------------------------------------------- giving

    def take_back(self, lease: Lease) -> bool:
        """Free what a lease holds; False if it has ended before."""
        condemned.pop(lease.key, None)
        if self.holders.pop(lease.key, None) is None:
            return False
        self.last_used = glance.time
        lock.acquire()
        try:
            now = self._now()
            if self.deadlines is not None:
                self.deadlines.discard(lease.key)
            ended = self.give(lease, now)
            self._after_change(ended, now)
        finally:
            unlock()
        self.deliver(ended)
        _log.released(lease, self)
        return True

    def hand_over(self, number: int) -> None:
        """Take back a slot that has no claim, whoever waits."""
        line, home = self.line, self.home
        if not self.attention and _get_running_loop() is home:
            # The quick lane, continued: straight to the first in the line.
            while line:
                try:
                    future = line.popleft()
                except IndexError:
                    break
                if future.done():  # cancelled, and left standing there
                    self.ended_tickets -= 1
                elif future.get_loop() is home:
                    future.set_result(number)
                    return
                else:  # it came while the home was about to change
                    self.deliver([Pass(future, number)])
                    return
        heappush(self.free, number)
        if line or self.attention:
            self.look_after_waiters()

    def look_after_waiters(self) -> None:
        """Look after those who wait, when somebody on the quick lane saw them."""
        lock.acquire()
        try:
            now = self._now()
            ended = self.settle(now)
            self._after_change(ended, now)
        finally:
            unlock()
        self.deliver(ended)

    def forget_deadline(self, key: int | None) -> None:
        """Take back the deadline of a quickly given lease that was not young any more."""
        with lock:
            if self.deadlines is not None:
                self.deadlines.discard(key)

    def _after_change(self, ended: list[MemoryClaim], now: float) -> None:
        if ended and self.deadlines is not None:
            self._start_ttls(ended, now)
        if self.closed and self.circulating == 0 and self.registry is not None:
            self.registry.forget(self)

    # -------------------------------------------------------------- the line

    def at_home(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether ``loop`` may use the line; it is opened for it if nobody else waits."""
        with lock:
            if not self.line and not self.waiting and not self.closed:
                self.home = loop
                self.open_line()
            return self.home is loop

    def settle_newcomer(self, future: asyncio.Future[int]) -> None:
        """`settle`, for a future whose loop saw the quick lane close while it queued."""
        with lock:
            # If the home changed in that very moment, the new one may have
            # tidied the line and missed it. To stand there twice does no harm.
            if not future.done() and future not in self.line:
                self.line.append(future)
        self.look_after_waiters()

    def leave_line(self, future: asyncio.Future[int], reason: BaseException) -> None:
        """A block stops waiting: hand its grant on, or leave an ended ticket behind."""
        if future.done() and not future.cancelled():
            if future.exception() is None:
                grant = Pass(future, future.result())
                if isinstance(reason, GeneratorExit):
                    self.abandon(grant)
                else:
                    self.withdraw(grant)
            return
        try:
            future.cancel()  # collected with its loop, it may be pending still
        except RuntimeError:
            pass  # cancelled all the same; the closed loop can't tell anybody
        self.ended_tickets += 1
        if self.ended_tickets > _FEW_ENDED and not isinstance(reason, GeneratorExit):
            self._tidy_line()

    def _tidy_line(self) -> None:
        line = self.line
        if self.ended_tickets * 2 < len(line) or _get_running_loop() is not self.home:
            return
        # Nobody else is in the line now: all others take the lock, and home is here.
        with lock:
            waiting = [future for future in line if not future.done()]
            line.clear()
            line.extend(waiting)
            self.ended_tickets = 0

    # ------------------------------------------------------ looking, steering

    def snapshot(self) -> SemaphoreStats:
        """The statistics, *with the lock held*."""
        return SemaphoreStats(self.in_use, self.value, self._waiting())

    def _waiting(self) -> int:
        line = list(self.line)
        if self.ended_tickets:
            line = [future for future in line if not future.done()]
        return len(line) + len(self.waiting)

    def change_value(self, value: int, declared: int) -> list[MemoryClaim]:
        """Change the value, *with the lock held*: those whose wait this ends.

        ``declared`` is the value that the instance was made with that asks.
        """
        if self.closed:
            raise self.closed_error()
        now = self._now()
        self.former_values = (*dict.fromkeys((*self.former_values, self.value, declared)),)
        refused, granted = self.resize(value, now)
        for claim in refused:
            claim.failure = self._refusal(claim)
        self._after_change(granted, now)
        return refused + granted

    def shut(self) -> list[MemoryClaim]:
        """Close, *with the lock held*: those whose wait this ends."""
        ended = self.close()
        for claim in ended:
            if not isinstance(claim, Pass):
                claim.failure = self.closed_error()
        self._after_change([], 0.0)
        return ended

    def retire_if_idle(self) -> bool:
        """Stop for good if nobody is here, *with the lock held*; False otherwise."""
        self.retired = self.retire()
        return self.retired

    # --------------------------------------------------------------- waking

    def deliver(self, claims: Iterable[MemoryClaim | Pass]) -> None:
        """Wake those whose wait has ended, without the lock."""
        ended: list[MemoryClaim | Pass] = [*claims]
        for claim in ended:  # which may grow meanwhile
            if not self._wake(claim):
                # Its event loop is closed. If this was a grant, the next one gets it.
                ended += self._withdraw_locked(claim)

    def _wake(self, claim: MemoryClaim | Pass) -> bool:
        if isinstance(claim, Pass):
            future = cast("asyncio.Future[int]", claim.key)
            refused = not claim._slot_number and not self.retired
            failure = self.closed_error() if refused else None
            return send(future, Parcel(self, claim, future, claim._slot_number, failure))
        waker = claim.waker
        if isinstance(waker, LockType):
            waker.release()
            return True
        return send(waker, Parcel(self, claim, waker, None))

    def refused(self, claim: MemoryClaim | Pass) -> None:
        """Nobody waits any more for what was brought: see to it, unless its task does."""
        if isinstance(claim, Pass):
            self.withdraw(claim)

    # ------------------------------------------------------------------ time

    def arm(self, when: float) -> None:
        """Have the alarm ring at ``when`` or earlier."""
        with lock:
            if when < self.alarm:
                self._set_alarm(when)

    def _start_ttls(self, claims: Iterable[MemoryClaim], now: float) -> None:
        for claim in claims:
            if claim.ttl is not None:
                cast("Lease", claim).since = now
                if now + claim.ttl < self.alarm:
                    self._set_alarm(now + claim.ttl)

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
            expired, waiters, granted = self.expire(now)
            for claim in waiters:
                claim.failure = self._timeout_error(claim.timeout or 0.0)
            holders = cast("list[Lease]", expired)  # other claims have no ttl
            to_cancel = [(lease, task) for lease in holders if (task := _task_to_cancel(lease))]
            condemned.update((lease.key, lease) for lease, _ in to_cancel)
            self._after_change(granted, now)
            next_deadline = self.next_deadline()
            if next_deadline < self.alarm:
                self._set_alarm(next_deadline)
        finally:
            unlock()
        for lease in holders:
            lease.lost.set(f"its ttl of {lease.ttl:g} s ended")
            _log.expired(lease, self, now - lease.since)
        for lease, task in to_cancel:
            _cancel_in_its_loop(lease, task)
        self.deliver(waiters)
        self.deliver(granted)

    def _now(self) -> float:
        """The time, if anybody's runs here."""
        return 0.0 if self.deadlines is None else _clock.now()

    # ---------------------------------------------------------------- errors

    def _timeout_error(self, waited: float) -> AcquireTimeout:
        return AcquireTimeout(
            f"no slot of {self._display_name} in {waited:g} s: {self.in_use} of {self.value}"
            f" held, {self._waiting()} others waiting"
        )

    def closed_error(self) -> SemaphoreClosed:
        return SemaphoreClosed(f"{self._display_name} is closed")

    def _refusal(self, claim: MemoryClaim) -> Exception:
        """Why ``claim`` will never be granted."""
        if self.closed:
            return self.closed_error()
        return ValueError(
            f"{claim.slots} slots asked of {self._display_name}, which has"
            f" {self.value}: that can never be granted"
        )

    @property
    def _display_name(self) -> str:
        return "a private semaphore" if self.name is None else repr(self.name)


def unlock() -> None:
    """Release the lock, and see to what a garbage collection left while it was held."""
    lock.release()
    if abandoned:
        clean_up()


def clean_up() -> None:
    """Withdraw what was abandoned, unless somebody has the lock, who then will."""
    while abandoned and lock.acquire(blocking=False):
        ended = []
        try:
            while abandoned:
                tracker, claim = abandoned.popleft()
                ended.append((tracker, tracker._withdraw(claim)))
        finally:
            lock.release()
        for tracker, claims in ended:
            tracker.deliver(claims)


def _task_to_cancel(lease: Lease) -> asyncio.Task[Any] | None:
    return getattr(lease, "task", None)


def _cancel_in_its_loop(lease: Lease, task: asyncio.Task[Any]) -> None:
    """Cancel the task of an expired lease, unless it is done with it when its loop gets there."""

    def cancel() -> None:
        if condemned.pop(lease.key, None) is not None:
            task.cancel(f"the ttl of {lease.acquisition_id} ended after {lease.ttl:g} s")

    try:
        task.get_loop().call_soon_threadsafe(cancel)
    except RuntimeError:  # the loop is closed, and the task with it
        condemned.pop(lease.key, None)
