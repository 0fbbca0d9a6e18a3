"""Tracker: what all objects of one name share in this process, or what one private object has.

It has a ledger, which decides who is granted what, an alarm, and the waiters to wake. Every verb
decides in the section and acts after it: claims whose wait has ended are queued inside and woken
outside, in the order of the grants. A grant that can't be delivered goes to the next waiter. The
line of ``async with semaphore:`` is in `_line`, names are in `_registry`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappush
from itertools import islice
from typing import TYPE_CHECKING, Any

from slotwise._core import events, messages
from slotwise._core.adaptive import Change
from slotwise._core.closing import Closure
from slotwise._core.control import Verb
from slotwise._core.overload import Overload
from slotwise._core.paths import (
    NodeStats,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    is_semaphore,
    pausing,
    title_of,
)
from slotwise._ledger import NEVER
from slotwise._ledger.adaptation import adaptation
from slotwise._ledger.declared import DeclaredLedger
from slotwise._ledger.idle_nodes import trim
from slotwise._ledger.path_fullness import is_frozen, path_stats, tier_stats
from slotwise._ledger.path_nodes import UNLIMITED, LineGrant
from slotwise._ledger.rate_nodes import RateNode
from slotwise._ledger.times import microseconds
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, post
from slotwise._wait.section import exclusive, exclusive_or_later, lock
from slotwise._wait.ttl_cancel import TtlCancel, TtlCancels
from slotwise._wait.wakers import Refusals, Waker, prepare_to_wake
from slotwise._wait.woken import NOBODY_WOKEN, Woken
from slotwise.errors import AcquireTimeout, LimitFull
from slotwise.memory import _line, _log
from slotwise.memory._line import NO_HOME, SHUT

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition

# For all limits of this process, whose keys are unique.
ttl_cancels = TtlCancels()

# Named ones with something that must outlive their objects: a changed value, a pause, what was
# taken of a rate. `_registry` lets go of them.
kept: dict[Tracker, None] = {}

# For how many seconds it is remembered how long slots are held, if some are refused for that.
_TIMES_KEPT = 60.0

# How many entries of a long table are searched for holders to name in a message.
_HOLDERS_LOOKED_AT = 100


class Tracker:
    """The shared state behind a name, or behind one private object.

    The methods of its ledger must be called in the section; those defined here enter it
    themselves, unless they say that they must be called in it.
    """

    __slots__ = (
        *("__weakref__", "_predecessor", "alarm", "closure", "ended"),
        *("ended_tickets", "has_keys", "home", "is_rated", "is_semaphore", "ledger", "name"),
        *("roomy", "specs", "unreported", "woken"),
    )

    # Between any two calls: its ledger is closed exactly while it has ended, has a closure, or
    # has a predecessor.

    def __init__(
        self,
        specs: Sequence[TierSpec],
        name: str | None = None,
        holders: dict[Hashable, Any] | None = None,
        predecessor: Tracker | None = None,
    ) -> None:
        """``predecessor`` is an ended tracker of the name, whose holders have to leave first."""
        self.name = name
        self.is_semaphore = is_semaphore(specs)
        self.ended = False  # closed for good
        self.closure: Closure | None = None  # while it is closed everywhere
        self._predecessor = predecessor
        self.alarm = NEVER  # when `_ring` is called next
        self.woken = NOBODY_WOKEN
        # Changes of adaptive values that the hooks don't know yet: the arguments of the call that
        # tells them.
        self.unreported: deque[tuple[Any, ...]] = deque()
        self.roomy = UNLIMITED  # up to this many keys, none has to be checked for idleness
        self._start(specs, holders)
        if predecessor is not None:
            self.ledger.close()

    def _start(self, specs: Sequence[TierSpec], holders: dict[Hashable, Any] | None) -> None:
        """Begin with a new ledger, which nobody has used."""
        self.home = NO_HOME  # who may use the ledger's line outside the section
        self.ended_tickets = 0  # about how many futures in the line are done
        self.specs = tuple(specs)
        self.has_keys = not self.is_semaphore and any(spec.keyed for spec in specs)
        ledger: DeclaredLedger[Any] = DeclaredLedger(specs, holders)
        # Whether anything is a rate: then `take_at_once` is the quick way, in the section.
        self.is_rated = ledger.refills is not None and not ledger.has_adaptive
        if self.is_semaphore:
            ledger.node(clock.now())
        self.ledger = ledger

    def bound_idle(self, max_idle_keys: int) -> None:
        """Remember at most ``max_idle_keys`` idle keys of each tier."""
        for tier in self.ledger.tiers:
            tier.max_idle = max_idle_keys
        # Most keys are in the narrowest tier; the others are checked along with it.
        self.roomy = max_idle_keys

    # --------------------------------------------------------------- its values

    def declare(self, specs: Sequence[TierSpec]) -> None:
        """Let somebody use a semaphore who declares it like that, *in the section*.

        Raises:
            ValueConflict: it is in use, with another value.
        """
        ledger = self.ledger
        if not ledger.accepts(tuple(specs)):
            if not ledger.retire():
                raise ledger.conflict(self.name, specs, _line.about(self))
            self._start(specs, ledger.holders)

    @property
    def value(self) -> int:
        """How many slots a semaphore has."""
        value: int = self.ledger.tiers[0].value_of(None)
        return value

    def is_worth_keeping(self, now: float) -> bool:
        """Whether forgetting it would lose something."""
        ledger = self.ledger
        if ledger.refills is not None and not ledger.is_full(now):
            return True
        if ledger.times_all and ledger.holds.ended and now - ledger.holds.since < _TIMES_KEPT:
            return True
        return ledger.is_worth_keeping(now)

    def keep(self) -> None:
        """Let it outlive its objects for as long as it is worth that."""
        if self.name is not None:
            kept[self] = None

    def let_go(self) -> None:
        """Undo `keep`, if that is not worth it any more."""
        if self in kept and not self.is_worth_keeping(clock.now()):
            del kept[self]

    # ---------------------------------------------------------------- changing

    def change(self, work: Callable[..., Iterable[Any]], *args: Any) -> None:
        """Run ``work`` in the section, and wake those whose wait it ended.

        Raises:
            RuntimeError: this thread is in the middle of another change.
        """
        try:
            exclusive(self._change, work, args)
        finally:
            deliver_posted()

    def change_or_later(self, work: Callable[..., Iterable[Any]], *args: Any) -> None:
        """Like `change`; after the other change, if this thread is in the middle of one."""
        exclusive_or_later(self._change, work, args, then=deliver_posted)

    def _change(self, work: Callable[..., Iterable[Any]], args: tuple[Any, ...]) -> None:
        self.post(work(*args))

    def serve(self) -> list[Any]:
        """Serve those for whom there may be slots, *in the section*."""
        now = clock.now()
        return self._after_change(self.ledger.serve(now), now)

    def _after_change(self, granted: list[Any], now: float) -> list[Any]:
        """Every change of the ledger ends with this, *in the section*."""
        if self.ledger.refills is not None:
            self.keep()
            self._ring_by(self.ledger.queue.next_refill())
        for claim in granted:
            if claim.named:
                claim.since = now
                if claim.ttl is not None:
                    self._ring_by(now + claim.ttl)
        return granted

    # --------------------------------------------------------------- acquiring

    def ask(
        self, claim: MemoryAcquisition, make_waker: Callable[[], Waker], overload: Overload | None
    ) -> bool:
        """Ask for slots, *in the section*; whether the claim has them. Others may be granted too.

        A claim that is not granted waits, and has a waker; or it has a failure if it
        doesn't want to wait. ``overload`` says which newcomers are refused at once.
        """
        self._check(claim)
        timeout, now = claim.timeout, clock.now()
        until = None if timeout is None else now + timeout
        granted: list[Any] = []
        if claim.replaces or (timeout != 0 and overload is None):
            granted = self._queue(claim, now, until)
        if timeout == 0 or overload is not None:
            if claim.key in self.ledger.waiting:  # it can't replace as many as it needs
                granted += self.ledger.cancel(claim.key, now)
            elif not claim.replaces:
                granted = self._try(claim, now)
            if not _has(granted, claim):
                if timeout == 0 or overload is None:
                    claim.failure = self._timeout_error(claim)
                else:
                    claim.failure = self._too_full(claim, overload, now)
                if claim.failure is not None:
                    claim.timeout = 0  # it doesn't wait
                else:
                    granted += self._queue(claim, now, until)
        is_granted = _has(granted, claim)
        if claim.key in self.ledger.waiting:
            claim.since = claim.arrived = now
            claim.failure = None
            claim.waker = make_waker()
            self.expect_waking()
            if until is not None:
                self._ring_by(until)
        if granted or self.ledger.refills is not None:
            self.post([each for each in self._after_change(granted, now) if each is not claim])
        return is_granted

    def _too_full(
        self, claim: MemoryAcquisition, overload: Overload, now: float
    ) -> LimitFull | None:
        """Return the error of a newcomer that would have to wait, if it may not."""
        if self.is_semaphore:
            self.home = SHUT  # nothing is timed in the line, and an estimate is wanted
        return self.ledger.too_full(
            *(self.title, overload, claim.path, claim.needs, claim.timeout, now),
            *(self._oldest_holders, _line.about(self)),
        )

    def take_now(self, claim: MemoryAcquisition) -> bool:
        """Take what a claim needs if nobody waits and it is there, *in the section*; of rates."""
        claim.since = now = clock.now()
        taken = self.ledger.take_at_once(claim, claim.path, now)
        if taken:
            self.keep()
        return taken

    def _check(self, claim: MemoryAcquisition) -> None:
        """Raise if a claim can't be granted, now or later."""
        if self.ledger.closed and not self.is_open():
            raise claim.backend.closed_error()
        error = self.ledger.never_fits(self.name, claim.path, claim.needs)
        if error is not None:
            raise error
        claim._slot_number = 0  # until it is granted

    def _try(self, claim: MemoryAcquisition, now: float) -> list[Any]:
        """Grant a claim its slots if they are free, without queueing it."""
        ledger = self.ledger
        if self.is_semaphore and self.ledger.times_all:
            self.ledger.holds.pass_time(now, ledger.node().in_use)
        ledger.check_request(claim, claim.path, now)  # what is granted next has to be returned
        granted = ledger.serve(now)
        if ledger.try_request(claim, claim.path, now, claim.weight):
            granted.append(claim)
        if self.has_keys:
            trim(ledger, now)  # it may have brought a new key
        return granted

    def _queue(self, claim: MemoryAcquisition, now: float, until: float | None) -> list[Any]:
        """Grant a claim its slots, or queue it until then."""
        ledger = self.ledger
        if self.is_semaphore:
            if self.ledger.times_all:
                self.ledger.holds.pass_time(now, ledger.node().in_use)
            elif not ledger.waiting:
                self.ledger.holds.begin(now)
            if claim.head_start:
                self.home = SHUT  # the line doesn't record since when they wait
        replaced: Sequence[MemoryAcquisition] = ()
        if claim.replaces:  # not blocks, which have no claims and can't be told
            ledger.attention = True  # nobody takes by the quick lane what comes back now
            replaced = ledger.replaceable(claim.slots)
        granted = ledger.request(claim, claim.path, now, wait_until=until, weight=claim.weight)
        if claim.replaces:
            granted += self._replace(claim, replaced, now)
        if self.has_keys and (granted or claim.group.head is claim):  # else its keys are known
            for nodes in ledger.tables:
                if len(nodes) > self.roomy:
                    trim(ledger, now)
                    break
        return granted

    def _replace(
        self, claim: MemoryAcquisition, replaced: Sequence[MemoryAcquisition], now: float
    ) -> list[Any]:
        ledger = self.ledger
        for each in replaced:
            # The deletion decides between this and its own release, by the quick lane.
            if ledger.holders.pop(each.key, None) is not None:
                if ledger.waiting or self.ledger.times_all:
                    self._note_end(each, now)
                ledger._free(each, now)
                claim.replaced = (*claim.replaced, each)
        return ledger.serve(now)

    # --------------------------------------------------------------- releasing
    # None of these waits or fails: a garbage collection may call them anywhere.

    def take_back(self, claim: MemoryAcquisition) -> None:
        """Free what a claim held that is no longer a holder."""
        exclusive_or_later(self._take_back, claim, then=deliver_posted)

    def _take_back(self, claim: MemoryAcquisition) -> None:
        now, ledger = clock.now(), self.ledger
        if self.is_rated and ledger.give_at_once(claim, now):
            return
        if ledger.waiting or self.ledger.times_all:
            self._note_end(claim, now)
        outcomes = claim._outcomes
        if outcomes is not None and outcomes.retry_after and not ledger.closed:
            for index, key in pausing(claim.backend._specs, claim.path):
                # Before anybody else is served.
                self.control("pause", index, key, outcomes.pauses_for)
                self.keep()
        granted = ledger.give(claim, now)
        if ledger.has_adaptive:
            self._collect_changes(claim.nodes)
        if ledger.has_adaptive or self.ledger.times_all:
            self.keep()
        self.post(self._after_giving(granted, now))

    def hand_over(self, number: int) -> None:
        """Take back a slot that has no claim, whoever waits."""
        if not _line.hand_to_first(self, number):
            self.change_or_later(self._take_number_back, number)

    def _take_number_back(self, number: int) -> list[Any]:
        now, ledger = clock.now(), self.ledger
        if ledger.waiting or self.ledger.times_all:
            self.ledger.holds.end(now, ledger.node().in_use, 1)
        return self._after_change(ledger.give_number(number, now), now)

    def _note_end(self, claim: MemoryAcquisition, now: float) -> None:
        """Note that a hold ends: how long it was counts, since somebody waits."""
        if self.is_semaphore:
            self.ledger.holds.end(now, self.ledger.node().in_use, claim.slots)
        else:
            since: float | None = getattr(claim, "since", None)
            if since is not None:
                self.ledger.holds.note(now - since)

    def undo(self, taken: Sequence[Any], number: int) -> None:
        """Put back what the quick lane took in vain.

        ``number`` is that of the last tier; which numbers the others get does not matter.
        """
        for node in taken:
            heappush(node.free, number)
        if self.ledger.attention:
            self.look_around(taken)

    def look_around(self, nodes: Sequence[Any]) -> None:
        """Serve those who wait, and forget idle keys, when the quick lane saw the need."""
        self.change_or_later(self._look_around, nodes)

    def _look_around(self, nodes: Sequence[Any]) -> list[Any]:
        ledger = self.ledger
        ledger.look_after(nodes)
        now = clock.now()
        return self._after_giving(ledger.serve(now), now)

    def _after_giving(self, granted: list[Any], now: float) -> list[Any]:
        if len(self.ledger.tables[0]) > self.roomy:
            trim(self.ledger, now)
        return self._after_change(granted, now)

    def withdraw(self, claim: Any) -> None:
        """End a wait whose outcome nobody will see: leave the queue, or pass the grant on."""
        self.change_or_later(self._withdraw, claim)

    def _withdraw(self, claim: Any) -> list[Any]:
        now, ledger = clock.now(), self.ledger
        if not claim.named and claim.key not in ledger.waiting:
            # Only once: a wake-up that is lost with its loop and the waiter's task both do it.
            number, claim._slot_number = claim._slot_number, 0
            return self._take_number_back(number) if number else []
        if claim.key in ledger.waiting:
            granted = ledger.cancel(claim.key, now)
        elif ledger.refills is not None:
            # Nobody has seen the grant: the buckets are as if there had been none.
            granted = ledger.undo_grant(claim.key, now)
        else:
            granted = ledger.release(claim.key, now)
        return self._after_change(granted, now)

    def keep_task(self, key: Hashable) -> None:
        """Don't cancel the task of an expired claim: it has left its block, or released."""
        if self.ledger.deadlines is not None:
            # In the section, where `_end_due` ends a hold and announces the cancel.
            exclusive_or_later(partial(ttl_cancels.keep_task, owner=self), key, then=_nothing)

    def forget_deadline(self, key: Hashable) -> None:
        """Take back the deadline of an acquisition that was given back by the quick lane."""
        assert self.ledger.deadlines is not None
        exclusive_or_later(self.ledger.deadlines.discard, key, then=_nothing)

    # ------------------------------------------------------------------ waking

    def expect_waking(self) -> None:
        """Note that somebody begins to wait."""
        if self.woken is NOBODY_WOKEN:
            self.woken = Woken()

    def post(self, claims: Iterable[Any]) -> None:
        """Post claims whose wait has ended, *in the section*, to be woken after earlier ones."""
        for claim in claims:
            if isinstance(claim, LineGrant):
                post(self._prepare_to_wake(claim))
            else:
                post(prepare_to_wake(claim.waker, self, claim))
        if self.ledger.unfinished:
            # What the bound on the work of one call left over is done piece by piece.
            post(self._do_more)

    def _do_more(self) -> None:
        self.change_or_later(self.serve)

    def _prepare_to_wake(self, grant: LineGrant) -> Callable[[], None]:
        future: Any = grant.key
        if not grant._slot_number:
            return partial(_line.refuse, self, deque([future]), self._maker_of_closed_error())
        if future.done():  # cancelled, and still in the line
            self.ended_tickets -= 1
            return partial(_line.pass_on, self, [grant])
        return prepare_to_wake(future, self, grant, grant._slot_number)

    def post_refused(self, claims: Sequence[Any], error: Callable[[Any], Exception]) -> None:
        """Post the claims that are refused, *in the section*.

        Their errors are made outside the section: there may be very many.
        """
        if claims:
            post(partial(self._refuse, claims, error))

    def _refuse(self, claims: Sequence[Any], error: Callable[[Any], Exception]) -> None:
        refusals: Refusals[Any] = Refusals(self)
        for claim in claims:
            claim.failure = error(claim)
            refusals.add(claim.waker, claim)
        refusals.send()

    def refused(self, claim: Any) -> None:
        """The waiter was cancelled before it was woken; its task withdraws the claim."""
        if isinstance(claim, LineGrant):  # or nobody does
            self.ended_tickets -= 1
            self.withdraw(claim)

    # -------------------------------------------------------------------- time

    def arm(self, when: float) -> None:
        """Set the alarm to ``when``, unless it is set to an earlier time."""
        exclusive_or_later(self._ring_by, when, then=deliver_posted)

    def _ring_by(self, when: float) -> None:
        if when < self.alarm:
            self.alarm = when
            clock.timekeeper.call_at(when, self._ring)

    def _ring(self, when: float) -> None:
        """End the holds and the waits whose time is up."""
        if when != self.alarm:
            return  # an earlier alarm was set since then, and did this
        exclusive_or_later(self._end_due, then=self._tell_due)

    def _end_due(self) -> tuple[float, list[Any], list[TtlCancel]]:
        # Before the deadlines are checked: an acquisition on the quick lane whose deadline this
        # check misses finds no alarm set, and sets one.
        self.alarm = NEVER
        now, ledger = clock.now(), self.ledger
        in_use = ledger.node().in_use if self.is_semaphore else 0
        times = self.ledger.times_all or bool(ledger.waiting)
        holders, waiters, granted = ledger.expire(now)
        cancels = []
        for claim in holders:
            if times and self.is_semaphore:
                self.ledger.holds.end(now, in_use, claim.slots)
            elif times:
                self.ledger.holds.note(now - claim.since)
            if claim.task is not None:
                reason = messages.cancelled_after_ttl(claim.acquisition_id, claim.ttl)
                cancels.append(ttl_cancels.announce(claim.key, claim.task, reason, owner=self))
            if ledger.has_adaptive:
                self._collect_changes(claim.nodes)
        self._after_change(granted, now)
        self._ring_by(ledger.next_deadline())
        self.post_refused(waiters, self._timeout_error)
        self.post(granted)
        return now, holders, cancels

    def _tell_due(self, due: tuple[float, list[Any], list[TtlCancel]]) -> None:
        now, holders, cancels = due
        deliver_posted()  # first: what follows runs users' code
        for claim in holders:
            claim.lost.set(messages.ttl_ended(claim.ttl))
        for cancel in cancels:
            cancel.send()
        for claim in holders:
            _log.expired(claim, self, now - claim.since)

    def run_out(self, move_to: Callable[[float], None]) -> None:
        """End all that waits for the time alone, for a fake clock that ends.

        ``move_to`` sets that clock.
        """
        self.arm(clock.now())
        while (when := self.alarm) < NEVER:
            move_to(max(when, clock.now()))
            self._ring(when)

    def start_over(self) -> None:
        """Forget what was measured by a fake clock that has ended: fill rates, measure again."""
        self.change(self._start_over)

    def _start_over(self) -> list[Any]:
        now, ledger = clock.now(), self.ledger
        for tier in ledger.tiers:
            nodes = list(tier.nodes.values())
            for node in nodes:
                if isinstance(node, RateNode):
                    node.fill(now)
                elif node.adaptation is not None and not node.adaptation.frozen:
                    node.adaptation = adaptation(node.adaptation.options, microseconds(now))
                    ledger._follow(node)
            ledger.look_after(nodes)
        return self.serve()

    # --------------------------------------------------------- adaptive values

    def _collect_changes(self, nodes: Iterable[Any]) -> None:
        """Note, *in the section*, how values have moved."""
        for node in nodes:
            change = None if node.adaptation is None else node.adaptation.take_change()
            if events.hooks and change is not None:
                self.unreported.append((node.tier, node.key, change.new, change.reason))

    def tell_changes(self, tell: Callable[..., None]) -> None:
        """Let ``tell`` tell the hooks how values have moved."""
        while self.unreported:
            try:
                change = self.unreported.popleft()
            except IndexError:  # another thread was faster
                break
            tell(*change)

    def changes(self, index: int, key: str | None) -> list[Change]:
        """How a value has moved, oldest first, in epoch seconds; *in the section*."""
        tier = self.ledger.tiers[index]
        if tier.adaptive is None:
            raise messages.fixed_value(self.title)
        node = tier.nodes.get(key)
        epoch = time.time() - clock.now()
        return [
            Change(each.at + epoch, each.old, each.new, each.reason)
            for each in (() if node is None else node.adaptation.changes)
        ]

    # -------------------------------------------------------------- controlling

    def control(self, verb: Verb, index: int, key: str | None, *args: Any) -> Any:
        """Change it by the rules, *in the section*; it is open, but for a refill."""
        now, ledger = clock.now(), self.ledger
        tier = ledger.tiers[index]
        if verb in ("freeze", "thaw") and tier.adaptive is None:
            raise messages.fixed_value(self.title)
        refused, granted = ledger.control(verb, index, key, args, now)
        if ledger.paused:
            self._ring_by(ledger.next_pause_end())
        if ledger.has_adaptive:  # whoever steered it tells the hooks
            for node in ledger.tiers[index].nodes.values():
                if node.adaptation is not None:
                    node.adaptation.take_change()
        self.post_refused(refused, self._never_fits_any_more)
        self.post(self._after_change(granted, now))
        return tier.value_of(key) if verb == "freeze" else None

    def settle(self, key: int, costs: Mapping[int, int]) -> list[Any]:
        """Correct what was taken of rates, *in the section*; return who is granted now."""
        now = clock.now()
        return self._after_change(self.ledger.charge(key, costs, now), now)

    def kick(self, claim: MemoryAcquisition) -> bool:
        """Free what somebody else holds, and tell them; False if it has ended before."""
        claim.ignored()
        if self.ledger.holders.pop(claim.key, None) is None:
            return False
        self.take_back(claim)
        self.tell_kicked(claim)
        return True

    def tell_kicked(self, claim: MemoryAcquisition) -> None:
        """Tell a holder that its slots were taken away."""
        claim.lost.set(messages.KICKED)
        _log.kicked(claim, self)

    def time_all_holds(self) -> None:
        """Time every hold from now on, *in the section*: nobody takes the quick lane any more."""
        if not self.ledger.times_all:
            self.ledger.times_all = self.ledger.attention = True
            self.ledger.has_quick_lane = False
            self.ledger.timed()  # what has deadlines is not given back by a shortcut
            self.home = SHUT
            self.ledger.holds.begin(clock.now())

    # ------------------------------------------------------------------ closing

    def is_open(self) -> bool:
        """Whether it can be used, *in the section*."""
        if self.ledger.closed:
            self._reopen_perhaps()
        return not self.ledger.closed

    def end(self) -> None:
        """Close for good, *in the section*."""
        self.ended = True
        kept.pop(self, None)
        self.closure = None
        self._refuse_all()

    def suspend(self, closure: Closure) -> None:
        """Close until `resume`, *in the section*."""
        if not self.ended:
            self.closure = closure
            self._refuse_all()

    def resume(self) -> None:
        """Undo `suspend`, and end pauses, *in the section*."""
        self.closure = None
        self._reopen_perhaps()
        if self.ledger.paused:
            now = clock.now()
            self.post(self._after_change(self.ledger.end_pauses(now), now))

    def is_held(self) -> bool:
        ledger = self.ledger
        return ledger.node().in_use > 0 if self.is_semaphore else bool(ledger.holders)

    @property
    def last_held(self) -> Tracker | None:
        """This one or its predecessor, if somebody holds something of it."""
        return self if self.is_held() else self._predecessor

    def _refuse_all(self) -> None:
        # First: who queues from now on sees that, and looks again.
        self.ledger.closed = self.ledger.attention = True
        tickets = _line.take_tickets(self)
        if tickets:
            post(partial(_line.refuse, self, tickets, self._maker_of_closed_error()))
        waiters = self.ledger.close(clock.now())
        self.post([each for each in waiters if isinstance(each, LineGrant)])  # who queued meanwhile
        claims = [each for each in waiters if not isinstance(each, LineGrant)]
        self.post_refused(claims, lambda claim: claim.backend.closed_error())

    def _maker_of_closed_error(self) -> Callable[[], Exception | None]:
        """Return what makes the error of those in the line; None lets them ask again."""
        if not (self.ended or self.closure):
            return lambda: None
        closure, subject = self.closure, f"{self.title} is"
        return lambda: messages.closed_error(subject, closure)

    def _reopen_perhaps(self) -> None:
        if self._predecessor is not None and not self._predecessor.is_held():
            self._predecessor = None
        if not self.ended and self.closure is None and self._predecessor is None:
            self.ledger.reopen()

    # ---------------------------------------------------------------- looking

    @property
    def held_here(self) -> Tracker:
        """This one or, while that is held, its predecessor: whose holders there are."""
        before = self._predecessor
        return self if before is None or not before.is_held() else before

    def claims(self) -> list[MemoryAcquisition]:
        """Return those who hold slots, the oldest grant first."""
        return list(self.held_here.ledger.holders.values())

    def holder(self, key: int | None) -> MemoryAcquisition | None:
        """Return the acquisition behind a key, if it is one of this limit."""
        for tracker in (self, self._predecessor):
            if tracker is not None:
                holder: MemoryAcquisition | None = tracker.ledger.holders.get(key)
                if holder is not None:
                    return holder
        return None

    def stats(self) -> dict[str, TierStats]:
        ledger = self.held_here.ledger
        with lock:  # only to copy: there may be very many keys
            waiting = len(ledger.waiting)
            nodes = [list(tier.nodes.items()) for tier in ledger.tiers]
        return tier_stats(ledger, self.specs, nodes, waiting, clock.now())

    def stats_of(self, path: Path) -> PathStats:
        """How full the tiers of one path are."""
        shown = self.held_here
        with lock:
            ledger, line = shown.ledger, list(shown.ledger.line)
            nodes = path_stats(ledger, path, clock.now())
            frozen = self.is_semaphore and is_frozen(ledger.tiers[0], None)
            closure = self.closure
            closed = self.ended or closure is not None or shown is not self
        in_line = sum(not future.done() for future in line)
        if in_line:
            [node] = nodes
            waiting = node.waiting + in_line
            nodes = (NodeStats(node.active, waiting, node.value, node.value, node.paused_for),)
        return PathStats(nodes, closed, closure, frozen=frozen)

    def estimate(self, path: Path, needs: Sequence[int] | None) -> float | None:
        """When a newcomer would get a path, *in the section*; None if unknown."""
        error = self.ledger.never_fits(self.name, path, needs)
        if error is not None:
            raise error
        if not self.is_open():
            return None
        if self.is_semaphore:
            self.home = SHUT  # nothing is timed in the line
        return self.ledger.estimate(path, needs, clock.now(), _line.about(self))

    # ---------------------------------------------------------------- messages

    @property
    def title(self) -> str:
        return title_of(self.specs, self.name)

    def _timeout_error(self, claim: MemoryAcquisition) -> AcquireTimeout:
        return messages.no_slot(self.title, claim.timeout or 0, self._fullness(claim))

    def _fullness(self, claim: MemoryAcquisition) -> str:
        """Return which tier has no room, and why."""
        return self.ledger.fullness(
            *(claim.path, claim.needs, clock.now(), self._oldest_holders, _line.about(self))
        )

    def _oldest_holders(self) -> str:
        """Name the oldest of the holders that have a label or a time.

        There may be very many, so only the first are looked at.
        """
        found, now = [], clock.now()
        try:
            first: list[Any] = list(islice(self.ledger.holders.values(), _HOLDERS_LOOKED_AT))
        except RuntimeError:  # the table has changed: a message isn't worth another look
            first = []
        for holder in first:
            since: float | None = getattr(holder, "since", None)
            if holder.label or since is not None:
                age = None if since is None else now - since
                found.append((socket.gethostname(), os.getpid(), holder.label, age))
                if len(found) == messages.NAMED_HOLDERS:
                    break
        return messages.oldest_holders(found)

    def _never_fits_any_more(self, claim: MemoryAcquisition) -> Exception:
        error = self.ledger.never_fits(self.name, claim.path, claim.needs)
        return error or claim.backend.closed_error()


def _nothing(_: object) -> None: ...


def _has(granted: Sequence[Any], claim: MemoryAcquisition) -> bool:
    # By identity: acquisitions are compared by their ids.
    return bool(granted) and any(each is claim for each in granted)


def running_task() -> asyncio.Task[Any] | None:
    return None if asyncio._get_running_loop() is None else asyncio.current_task()
