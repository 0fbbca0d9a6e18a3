"""Tracker: what all instances of one name share. A ledger, in the section, with its alarm.

Every verb here decides in the section and acts after it: those whose wait has
ended are collected inside and woken outside. A grant that cannot be delivered
goes to the next.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from heapq import heappush
from typing import TYPE_CHECKING, Any, cast

from slotwise._core import messages
from slotwise._core.closing import Closure, Generation, closed_error
from slotwise._core.messages import display
from slotwise._core.results import SemaphoreStats
from slotwise._ledger import NEVER, Ledger, LineGrant
from slotwise._wait import clock
from slotwise._wait.clock import glance
from slotwise._wait.section import exclusive, exclusive_or_later, lock
from slotwise._wait.ttl_cancel import TtlCancel, TtlCancels
from slotwise._wait.wakers import Delivery, Waker, send, wake
from slotwise._wait.woken import NOBODY_WOKEN, Woken
from slotwise.errors import AcquireTimeout, SemaphoreClosed
from slotwise.memory import _log
from slotwise.memory._acquisition import MemoryAcquisition, MemoryClaim

if TYPE_CHECKING:
    from slotwise.memory._path_acquisition import MemoryPathAcquisition
    from slotwise.memory._registry import Registry

# Of all semaphores and tiers of this process: their keys are unique.
ttl_cancels = TtlCancels()

# A line is tidied when more than half of it, and more than this, has ended.
_FEW_ENDED = 32

_NO_DEADLINES: dict[Hashable, float] = {}


class Tracker(Ledger[MemoryClaim]):
    """The shared state behind a name, or behind one private semaphore.

    It is a ledger and not only has one: a name costs one object less that way,
    and the quick lane a look-up less. The verbs of the ledger belong in the
    section; those defined here go there by themselves, unless they say that
    they want to be called in it.
    """

    __slots__ = (
        "__weakref__",
        "alarm",
        "closure",
        "ended_tickets",
        "generation",
        "home",
        "last_used",
        "name",
        "registry",
        "retired",
        "woken",
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
        # Set once it is retired: whether the instances that still refer to it are closed.
        self.generation: Generation | None = None
        # While it is closed everywhere. One that is closed without was closed for good.
        self.closure: Closure | None = None
        self.last_used = glance.time
        self.alarm = NEVER  # when `_ring` is called next
        # The ledger's, for the quick lane of semaphores with a ttl.
        self.young_deadlines = _NO_DEADLINES
        # The one event loop that may use the ledger's line outside the section.
        self.home: asyncio.AbstractEventLoop | None = None
        self.ended_tickets = 0  # about how many futures in the line are done
        self.woken = NOBODY_WOKEN

    @property
    def is_ended(self) -> bool:
        """Whether it was closed for good: its instances stay closed."""
        return self.closed and self.closure is None

    # ---------------------------------------------------------------- taking

    def ask(self, claim: MemoryClaim, make_waker: Callable[[], Waker]) -> list[MemoryClaim]:
        """Ask for slots, *in the section*: who is granted now, the claim last if it is.

        A claim that is not granted waits, and has a waker.
        """
        if self.closed or claim.slots > self.value:
            raise self._refusal(claim)
        timeout = claim.timeout
        now = clock.now()
        if timeout is None:
            granted = self.request(claim, now)
        else:
            if timeout == 0:
                if not self.try_request(claim, now):
                    raise self._timeout_error(0.0)
                granted = [claim]
            else:
                granted = self.request(claim, now, wait_until=now + timeout)
        if granted:
            self._note_grants(granted, now)
        if not granted or granted[-1] is not claim:
            claim.since = now
            claim.failure = None
            claim.waker = make_waker()
            self._expect_waking()
            if timeout is not None:
                self._ring_by(now + timeout)
        return granted

    def ask_now(self, claim: MemoryClaim) -> bool:
        """Ask for slots without waiting, *in the section*."""
        if self.closed or claim.slots > self.value:
            raise self._refusal(claim)
        now = clock.now()
        if not self.try_request(claim, now):
            return False
        self._note_grants([claim], now)
        return True

    # ---------------------------------------------------------------- giving
    # None of these waits or fails: a garbage collection may call them anywhere.

    def withdraw(self, claim: MemoryClaim | LineGrant) -> None:
        """End a wait whose outcome nobody will see: leave the queue, or hand the grant on."""
        exclusive_or_later(self._withdraw, claim, then=self.deliver)

    def _withdraw(self, claim: MemoryClaim | LineGrant) -> list[MemoryClaim]:
        key, now = claim.key, clock.now()
        if claim.named or not claim._slot_number:
            ended = self.cancel(key, now) if key in self.waiting else self.release(key, now)
        else:
            ended = self.give_number(claim._slot_number, now)
        return self._after_change(ended, now)

    def take_back(self, lease: MemoryAcquisition) -> bool:
        """Free what a lease holds; False if it has ended before."""
        if not self._end_hold(lease):
            self.keep_task(lease.key)
            return False
        _log.released(lease, self)
        return True

    def kick(self, lease: MemoryAcquisition) -> bool:
        """Free what somebody else holds, and tell them; False if it has ended before."""
        if not self._end_hold(lease):
            return False
        lease.lost.set(messages.KICKED)
        _log.kicked(lease, self)
        return True

    def _end_hold(self, lease: MemoryAcquisition) -> bool:
        # The deletion decides between all who want to end the same acquisition.
        try:
            del self.holders[lease.key]
        except KeyError:
            return False
        self.last_used = glance.time
        exclusive_or_later(self._take_back, lease, then=self.deliver)
        return True

    def _take_back(self, lease: MemoryAcquisition) -> list[MemoryClaim]:
        now = clock.now()
        if self.deadlines is not None:
            self.deadlines.discard(lease.key)
        return self._after_change(self.give(lease, now), now)

    def put_back(self, number: int) -> None:
        """Take back a slot whose claim has ended, when the ledger's attention is up."""
        exclusive_or_later(self._put_back_in_section, number, then=self.deliver)

    def _put_back_in_section(self, number: int) -> list[MemoryClaim]:
        now = clock.now()
        return self._after_change(self.give_number(number, now), now)

    def hand_over(self, number: int) -> None:
        """Take back a slot that has no claim, whoever waits."""
        line, home = self.line, self.home
        if not self.attention and not self.woken.under_way and _get_running_loop() is home:
            # The quick lane, continued: straight to the first in the line.
            while line:
                try:
                    future = line.popleft()
                except IndexError:
                    break
                if future.done():  # cancelled, and left standing there
                    self.ended_tickets -= 1
                elif future.get_loop() is home:
                    self.woken.add(future)
                    future.set_result(number)
                    return
                else:  # it came while the home was about to change
                    self.deliver([LineGrant(future, number)])
                    return
        if self.attention:
            self.put_back(number)
            return
        heappush(self.free, number)
        if self.line or self.attention:
            self.look_after_waiters()

    def look_after_waiters(self) -> None:
        """Serve those who wait, when somebody on the quick lane saw them."""
        exclusive_or_later(self._look_after_waiters, then=self.deliver)

    def _look_after_waiters(self) -> list[MemoryClaim]:
        now = clock.now()
        return self._after_change(self.settle(now), now)

    def forget_deadline(self, key: Hashable) -> None:
        """Take back the deadline of a quickly given lease that was not young any more."""
        if self.deadlines is not None:
            exclusive_or_later(self.deadlines.discard, key, then=_nothing)

    def keep_task(self, key: Hashable) -> None:
        """Do not cancel the task of an expired lease: it has left, or released."""
        if self.deadlines is not None:
            exclusive_or_later(self._keep_task, key, then=_nothing)

    def _keep_task(self, key: Hashable) -> None:
        # In the section, where `_end_what_is_due` ends a hold and announces the cancel.
        ttl_cancels.keep_task(key, owner=self)

    def _after_change(self, ended: list[MemoryClaim], now: float) -> list[MemoryClaim]:
        if ended:
            self._note_grants(ended, now)
        if self.circulating == 0 and self.is_ended and self.registry is not None:
            self.registry.forget(self)
        return ended

    # -------------------------------------------------------------- the line

    def at_home(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether ``loop`` may use the line; it is opened for it if nobody else waits."""
        return exclusive(self._at_home, loop)

    def _at_home(self, loop: asyncio.AbstractEventLoop) -> bool:
        if not self.line and not self.waiting and not self.closed:
            self.home = loop
            self.open_line()
            self._expect_waking()
        return self.home is loop

    def _expect_waking(self) -> None:
        if self.woken is NOBODY_WOKEN:
            self.woken = Woken()

    def settle_newcomer(self, future: asyncio.Future[int]) -> None:
        """Look after a future whose loop saw the quick lane close while it queued."""
        exclusive_or_later(self._settle_newcomer, future, then=self.deliver)

    def _settle_newcomer(self, future: asyncio.Future[int]) -> list[MemoryClaim]:
        # If the home changed in that very moment, the new one may have tidied
        # the line and missed it. To stand there twice does no harm.
        if not future.done() and future not in self.line:
            self.line.append(future)
        return self._look_after_waiters()

    def leave_line(self, future: asyncio.Future[int]) -> None:
        """A block stops waiting: hand its grant on, or leave an ended ticket behind."""
        self.woken.discard(future)
        if not future.cancelled():
            if future.done():
                if future.exception() is None:
                    self.withdraw(LineGrant(future, future.result()))
                return
            try:
                future.cancel()  # collected with its loop, it was pending still
            except RuntimeError:
                pass  # cancelled all the same; the closed loop can't tell anybody
        self.ended_tickets += 1
        if self.free or self.circulating < self.value:
            self.look_after_waiters()  # interrupted before it had looked for the last time
        if (
            self.ended_tickets > _FEW_ENDED
            and self.ended_tickets * 2 > len(self.line)
            and _get_running_loop() is self.home
        ):
            exclusive_or_later(self._tidy_line, then=_nothing)

    def _tidy_line(self) -> None:
        # Home is here and all others are outside the section. A giver that looks
        # at the line without it finds the old one or the new one, and never none.
        # A former home that was about to queue may use the old one: see above.
        self.line = deque(future for future in list(self.line) if not future.done())
        self.ended_tickets = 0

    # ------------------------------------------------------ looking, steering

    def snapshot(self) -> SemaphoreStats:
        """The statistics."""
        with lock:
            queued = sum(not future.done() for future in list(self.line))
            waiting, closure = queued + len(self.waiting), self.closure
            if closure is None:
                return SemaphoreStats(self.in_use, self.value, waiting)
            return SemaphoreStats(self.in_use, self.value, waiting, True, closure.reason)

    def change_value(self, value: int, declared: int) -> list[MemoryClaim]:
        """Change the value, *in the section*: those whose wait this ends.

        ``declared`` is the value that the instance was made with that asks.
        """
        if self.closed:
            raise self.closed_error()
        now = clock.now()
        refused, granted = self.resize(value, now, declared=declared)
        for claim in refused:
            claim.failure = self._refusal(claim)
        return refused + self._after_change(granted, now)

    def end(self) -> list[MemoryClaim]:
        """Close for good, *in the section*: those whose wait this ends."""
        self.closure = None
        return self._refuse_all()

    def suspend(self, closure: Closure) -> list[MemoryClaim]:
        """Close until `resume`, *in the section*: those whose wait this ends."""
        if self.is_ended:
            return []
        self.closure = closure
        return self._refuse_all()

    def resume(self) -> list[MemoryClaim]:
        """Undo `suspend`, *in the section*, if nobody closed it for good."""
        if self.closure is None:
            return []
        self.closure = None
        now = clock.now()
        return self._after_change(self.reopen(now), now)

    def _refuse_all(self) -> list[MemoryClaim]:
        ended = self.close()
        for claim in ended:
            if not isinstance(claim, LineGrant):
                claim.failure = self.closed_error()
        self._after_change([], 0.0)
        return ended

    def retire_if_idle(self) -> bool:
        """Stop for good if nobody is here, *in the section*; False otherwise."""
        self.retired = self.retire()
        if self.retired and self.registry is not None and self.name is not None:
            self.generation = self.registry.generations.current(self.name)
        return self.retired

    # --------------------------------------------------------------- waking

    def deliver(self, claims: Iterable[MemoryClaim | LineGrant]) -> None:
        """Wake those whose wait has ended, outside the section, in the order of the grants."""
        undelivered = [claim for claim in claims if not self._wake(claim)]
        if undelivered:
            # Their event loop is closed, or they have left. What they were granted is
            # granted to the next ones, who therefore come after all those above.
            _hand_on(self, undelivered)

    def _wake(self, claim: MemoryClaim | LineGrant) -> bool:
        if isinstance(claim, LineGrant):
            future = cast("asyncio.Future[int]", claim.key)
            if future.done():  # cancelled, and left standing in the line
                self.ended_tickets -= 1
                return False
            refused = not claim._slot_number and not self.retired
            failure = self.closed_error() if refused else None
            return send(future, Delivery(self, claim, future, claim._slot_number, failure))
        return wake(claim.waker, self, claim)

    def refused(self, claim: MemoryClaim | LineGrant) -> None:
        """Nobody waits any more for what was brought: see to it, unless its task does."""
        if isinstance(claim, LineGrant):
            self.ended_tickets -= 1
            self.withdraw(claim)

    # ------------------------------------------------------------------ time

    def arm(self, when: float) -> None:
        """Have the alarm ring at ``when`` or earlier."""
        exclusive_or_later(self._ring_by, when, then=_nothing)

    def _note_grants(self, claims: Iterable[MemoryClaim], now: float) -> None:
        for claim in claims:
            if claim.named:
                claim.since = now
                if claim.ttl is not None:
                    self._ring_by(now + claim.ttl)

    def _ring_by(self, when: float) -> None:
        if when < self.alarm:
            self.alarm = when
            clock.timekeeper.call_at(when, self._ring)

    def _ring(self, when: float) -> None:
        """End the holds and the waits whose time is up."""
        if when != self.alarm:
            return  # an earlier alarm has been set since and has seen to this
        exclusive_or_later(self._end_what_is_due, then=self._tell_whose_time_is_up)

    def _end_what_is_due(
        self,
    ) -> tuple[float, list[MemoryAcquisition], list[TtlCancel], list[MemoryClaim]]:
        # Before the deadlines are looked at: a quick taker whose deadline comes
        # too late for this look finds no alarm set, and sets one.
        self.alarm = NEVER
        now = clock.now()
        expired, waiters, granted = self.expire(now)
        for claim in waiters:
            claim.failure = self._timeout_error(claim.timeout or 0.0)
        holders = cast("list[MemoryAcquisition]", expired)  # other claims have no ttl
        cancels = announce_cancels(holders, self)
        self._after_change(granted, now)
        self._ring_by(self.next_deadline())
        return now, holders, cancels, waiters + granted

    def _tell_whose_time_is_up(
        self,
        outcome: tuple[float, list[MemoryAcquisition], list[TtlCancel], list[MemoryClaim]],
    ) -> None:
        now, holders, cancels, ended = outcome
        self.deliver(ended)  # first: what follows runs other people's code
        for lease in holders:
            lease.lost.set(messages.ttl_ended(lease.ttl))
        for cancel in cancels:
            cancel.send()
        for lease in holders:
            _log.expired(lease, self, now - lease.since)

    # ---------------------------------------------------------------- errors

    def _timeout_error(self, waited: float) -> AcquireTimeout:
        return AcquireTimeout(
            f"no slot of {display(self.name)} in {waited:g} s: {self.in_use} of {self.value}"
            f" held, {self._about_waiting()} others waiting"
        )

    def _about_waiting(self) -> int:
        """How many wait, counted without walking the line: there may be many time-outs."""
        return max(len(self.line) - max(self.ended_tickets, 0), 0) + len(self.waiting)

    def closed_error(self) -> SemaphoreClosed:
        return closed_error(f"{display(self.name)} is", self.closure)

    def _refusal(self, claim: MemoryClaim) -> Exception:
        """Why ``claim`` will never be granted."""
        if self.closed:
            return self.closed_error()
        return ValueError(
            f"{claim.slots} slots asked of {display(self.name)}, which has"
            f" {self.value}: that can never be granted"
        )


def _nothing(_: object) -> None: ...


def _hand_on(tracker: Tracker, claims: Iterable[MemoryClaim | LineGrant]) -> None:
    """Withdraw claims that can't be told, and all that get their grants and fare the same.

    A loop instead of a chain of calls: thousands may have waited in that loop.
    """
    undelivered: deque[MemoryClaim | LineGrant] = deque(claims)
    at_it = False

    def sort_out(ended: list[MemoryClaim]) -> None:
        undelivered.extend(one for one in ended if not tracker._wake(one))
        hand_on()  # if this was put off, nobody is at it

    def hand_on() -> None:
        nonlocal at_it
        if at_it:
            return
        at_it = True
        try:
            while undelivered:
                exclusive_or_later(tracker._withdraw, undelivered.popleft(), then=sort_out)
        finally:
            at_it = False

    hand_on()


def announce_cancels(
    expired: Iterable[MemoryAcquisition | MemoryPathAcquisition], owner: object
) -> list[TtlCancel]:
    """Have the tasks of those cancelled that asked for it, *in the section*."""
    cancels: list[TtlCancel] = []
    for lease in expired:
        task: asyncio.Task[Any] | None = getattr(lease, "task", None)
        if task is not None:
            reason = messages.cancelled_after_ttl(lease.acquisition_id, lease.ttl)
            cancels.append(ttl_cancels.announce(lease.key, task, reason, owner=owner))
    return cancels
