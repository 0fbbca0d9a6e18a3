"""BaseTracker: what both trackers share: request, withdraw, wake waiters, end expired claims.

Every verb here decides in the section and acts after it: claims whose wait has ended are
queued inside and woken outside, in the order of the grants. A grant that can't be delivered
goes to the next waiter. A tracker is a ledger itself, which decides who is granted what.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from slotwise._core import events, messages
from slotwise._core.adaptive import Outcome
from slotwise._core.closing import Closure
from slotwise._core.outcomes import Outcomes
from slotwise._core.overload import Overload
from slotwise._ledger import NEVER
from slotwise._ledger.adaptation import Adaptation
from slotwise._ledger.base import BaseLedger
from slotwise._ledger.slots import FEW
from slotwise._ledger.times import microseconds
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, post
from slotwise._wait.section import exclusive, exclusive_or_later
from slotwise._wait.ttl_cancel import TtlCancel, TtlCancels
from slotwise._wait.wakers import Refusals, Waker, prepare_to_wake
from slotwise._wait.woken import Woken
from slotwise.errors import AcquireTimeout, LimitFull
from slotwise.memory import _log

# For all semaphores and tiers of this process, whose keys are unique.
ttl_cancels = TtlCancels()


# A claim of a ledger, with `since`, `timeout`, `waker` and so on: see `MemoryAcquisition`.
C = TypeVar("C", bound=Any)

# When the deadlines were checked, the claims whose ttl had ended, and the cancels of their tasks.
Due = tuple[float, list[C], list[TtlCancel]]


class BaseTracker(BaseLedger[C]):
    """A ledger in the section, with its alarm and the waiters to wake.

    It is a ledger, instead of having one: that saves an object for each name, and the quick lane a
    look-up. The ledger's own methods must be called in the section; those defined here enter it
    themselves, unless they say that they must be called in it.
    """

    # The subclasses have the slots: a class can't inherit from two that have some.
    __slots__ = ()

    name: str | None
    alarm: float  # when `_ring` is called next
    closure: Closure | None  # while it is closed everywhere
    is_expiring: bool  # whether holds end by their ttl
    # Changes of adaptive values that the hooks don't know yet: the arguments of the call that
    # tells them.
    unreported: deque[tuple[Any, ...]]
    woken: Woken

    # -------------------------------------------------------------- changing

    def change(self, work: Callable[..., list[C]], *args: Any) -> None:
        """Run ``work`` in the section, and wake those whose wait it ended.

        Raises:
            RuntimeError: this thread is in the middle of another change.
        """
        try:
            exclusive(self._change, work, args)
        finally:
            deliver_posted()

    def change_or_later(self, work: Callable[..., list[C]], *args: Any) -> None:
        """Like `change`; after the other change, if this thread is in the middle of one."""
        exclusive_or_later(self._change, work, args, then=deliver_posted)

    def _change(self, work: Callable[..., list[C]], args: tuple[Any, ...]) -> None:
        self.post(work(*args))

    # ------------------------------------------------------------- acquiring

    def ask(self, claim: C, make_waker: Callable[[], Waker], overload: Overload | None) -> bool:
        """Ask for slots, *in the section*; whether the claim has them. Others may be granted too.

        A claim that is not granted waits, and has a waker; or it has a failure if it
        doesn't want to wait. ``overload`` says which newcomers are refused at once.
        """
        self._check(claim)
        timeout, now = claim.timeout, clock.now()
        granted: list[C] = []
        is_granted, failure = False, None
        if timeout == 0 or claim.replaces or overload is not None:
            granted = self._try(claim, now)
            is_granted = bool(granted) and granted[-1] is claim
            if not is_granted and claim.replaces:
                granted += self._replace(claim, now)
                is_granted = bool(granted) and granted[-1] is claim
            if not is_granted and (timeout == 0 or overload is not None):
                failure = self._timeout_error(claim) if timeout == 0 else self._full_error(claim)
        if failure is not None:
            claim.failure = failure
            claim.timeout = 0  # it doesn't wait
        elif not is_granted:
            until = None if timeout is None else now + timeout
            granted += self._queue(claim, now, until)
            if not granted or granted[-1] is not claim:
                claim.since = claim.arrived = now
                claim.failure = None
                claim.waker = make_waker()
                self._expect_waking(claim.waker)
                if until is not None:
                    self._ring_by(until)
        self._after_change(granted, now)
        is_granted = bool(granted) and granted[-1] is claim
        if is_granted:
            granted.pop()
        self.post(granted)
        return is_granted

    @abstractmethod
    def _check(self, claim: C) -> None:
        """Raise if a claim can't be granted, now or later."""

    @abstractmethod
    def _full_error(self, claim: C) -> LimitFull | None:
        """Return the error of a claim that doesn't fit and may not wait."""

    @abstractmethod
    def _try(self, claim: C, now: float) -> list[C]:
        """Grant a claim its slots if they are free, without queueing it."""

    def _replace(self, claim: C, now: float) -> list[C]:  # noqa: ARG002 - of semaphores
        """Take over slots from a holder; return who is granted now, as `ask` does."""
        return []

    @abstractmethod
    def _queue(self, claim: C, now: float, until: float | None) -> list[C]:
        """Grant a claim its slots, or queue it until then."""

    def _expect_waking(self, waker: Waker) -> None:
        """Note that somebody begins to wait, on ``waker``."""

    def _after_change(self, granted: list[C], now: float) -> list[C]:
        """Every change of the ledger ends with this, *in the section*."""
        for claim in granted:
            if claim.named:
                claim.since = now
                if claim.ttl is not None:
                    self._ring_by(now + claim.ttl)
        return granted

    # ------------------------------------------------------------- releasing
    # None of these waits or fails: a garbage collection may call them anywhere.

    def withdraw(self, claim: C) -> None:
        """End a wait whose outcome nobody will see: leave the queue, or pass the grant on."""
        self.change_or_later(self._withdraw, claim)

    def _withdraw(self, claim: C) -> list[C]:
        now = clock.now()
        end = self.cancel if claim.key in self.waiting else self.release
        return self._after_change(end(claim.key, now), now)

    def keep_task(self, key: Hashable) -> None:
        """Don't cancel the task of an expired claim: it has left its block, or released."""
        if self.deadlines is not None:
            exclusive_or_later(self._keep_task, key, then=nothing)

    def _keep_task(self, key: Hashable) -> None:
        # In the section, where `_end_due` ends a hold and announces the cancel.
        ttl_cancels.keep_task(key, owner=self)

    # ---------------------------------------------------------------- waking

    def post(self, claims: Sequence[C]) -> None:
        """Post claims whose wait has ended, *in the section*, to be woken after earlier ones."""
        for claim in claims:
            post(self._prepare_to_wake(claim))

    def _prepare_to_wake(self, claim: C) -> Callable[[], None]:
        return prepare_to_wake(claim.waker, self, claim)

    def post_refused(self, claims: Sequence[C], error: Callable[[C], Exception]) -> None:
        """Post the claims that are refused, *in the section*.

        Their errors are made outside the section: there may be very many.
        """
        if claims:
            post(partial(self._refuse, deque(claims), error))

    def _refuse(self, claims: deque[C], error: Callable[[C], Exception]) -> None:
        while claims:
            refusals = Refusals(self)
            some = list(islice(claims, FEW))
            for claim in some:
                self._refuse_one(claim, error(claim), refusals)
            refusals.send()
            for _ in some:
                claims.popleft()

    def _refuse_one(self, claim: C, failure: Exception, refusals: Refusals[C]) -> None:
        claim.failure = failure
        refusals.add(claim.waker, claim)

    def refused(self, claim: C) -> None:
        """The waiter was cancelled before it was woken; its task withdraws the claim."""

    # ------------------------------------------------------------------ time

    def arm(self, when: float) -> None:
        """Set the alarm to ``when``, unless it is set to an earlier time."""
        exclusive_or_later(self._ring_by, when, then=deliver_posted)

    def _ring_by(self, when: float) -> None:
        if when < self.alarm:
            self.alarm = when  # type: ignore[misc] # a slot of the subclasses
            clock.timekeeper.call_at(when, self._ring)

    def _ring(self, when: float) -> None:
        """End the holds and the waits whose time is up."""
        if when != self.alarm:
            return  # an earlier alarm was set since then, and did this
        exclusive_or_later(self._end_due, then=self._tell_due)

    def _end_due(self) -> Due[C]:
        # Before the deadlines are checked: an acquisition on the quick lane whose deadline this
        # check misses finds no alarm set, and sets one.
        self.alarm = NEVER  # type: ignore[misc] # a slot of the subclasses
        now = clock.now()
        holders, waiters, granted = self.expire(now)
        cancels = []
        for claim in holders:
            task: asyncio.Task[Any] | None = getattr(claim, "task", None)
            if task is not None:
                reason = messages.cancelled_after_ttl(claim.acquisition_id, claim.ttl)
                cancels.append(ttl_cancels.announce(claim.key, task, reason, owner=self))
        self._after_change(granted, now)
        self._ring_by(self._next_alarm())
        self.post_refused(waiters, self._timeout_error)
        self.post(granted)
        return now, holders, cancels

    def _next_alarm(self) -> float:
        """When `_ring` has to be called, *in the section*."""
        return self.next_deadline()

    def run_out(self, move_to: Callable[[float], None]) -> None:
        """End all that waits for the time alone, for a fake clock that ends.

        ``move_to`` sets that clock.
        """
        self.arm(clock.now())
        while (when := self.alarm) < NEVER:
            move_to(max(when, clock.now()))
            self._ring(when)

    def start_over(self) -> None:
        """Forget what was measured by a fake clock that has ended."""

    def _tell_due(self, due: Due[C]) -> None:
        now, holders, cancels = due
        deliver_posted()  # first: what follows runs users' code
        for claim in holders:
            claim.lost.set(messages.ttl_ended(claim.ttl))
        for cancel in cancels:
            cancel.send()
        for claim in holders:
            _log.expired(claim, self, now - claim.since)

    def tell_kicked(self, claim: C) -> None:
        """Tell a holder that its slots were taken away."""
        claim.lost.set(messages.KICKED)
        _log.kicked(claim, self)

    @abstractmethod
    def _timeout_error(self, claim: C) -> AcquireTimeout: ...

    # ------------------------------------------------------- adaptive values

    def expire(self, now: float) -> tuple[list[C], list[C], list[C]]:
        self.is_expiring = True  # type: ignore[misc] # a slot of the subclasses
        try:
            return super().expire(now)
        finally:
            self.is_expiring = False  # type: ignore[misc]

    def _ending_of(self, claim: C, now: float) -> tuple[int, Outcome, int]:
        outcomes: Outcomes | None = claim._outcomes
        if outcomes is None:
            return 0, "ignored", 0
        outcome: Outcome = "dropped" if self.is_expiring else outcomes.outcome
        held_us = max(microseconds(now) - microseconds(claim.since), 0)
        return held_us, outcome, microseconds(outcomes.retry_after)

    def _report_later(self, adaptation: Adaptation, *where: Any) -> None:
        """Note, *in the section*, how a value has moved; ``where`` are a tier and its key."""
        change = adaptation.take_change()
        if events.hooks and change is not None:
            self.unreported.append((*where, change.new, change.reason))

    def tell_changes(self, tell: Callable[..., None]) -> None:
        """Let ``tell`` tell the hooks how values have moved."""
        while self.unreported:
            try:
                change = self.unreported.popleft()
            except IndexError:  # another thread was faster
                break
            tell(*change)


def nothing(_: object) -> None: ...
