"""Tracker: what all instances of one semaphore share.

What it shares with the tracker of tiers is in `_base_tracker`. Here is what only a semaphore
has: the line of its blocks, its statistics, its name in the registry.
"""

from __future__ import annotations

import asyncio
import os
import socket
from _thread import get_ident
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from heapq import heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from slotwise._core import fork, messages
from slotwise._core.adaptive import Adaptive, Change
from slotwise._core.closing import Closure, Generation
from slotwise._core.messages import closed_error, display
from slotwise._core.overload import too_late
from slotwise._core.results import SemaphoreStats
from slotwise._core.trio_run import TrioRun
from slotwise._ledger import NEVER, Ledger, LineGrant
from slotwise._ledger.adaptation import Adaptation, adaptation
from slotwise._ledger.estimates import HoldTimes, slots_in, total
from slotwise._ledger.slots import FEW
from slotwise._ledger.times import microseconds
from slotwise._wait import clock
from slotwise._wait.clock import glance
from slotwise._wait.deliveries import deliver_posted, post
from slotwise._wait.section import exclusive, exclusive_or_later, lock
from slotwise._wait.wakers import Refusals, Waker, prepare_to_wake
from slotwise._wait.woken import NOBODY_WOKEN, Woken
from slotwise.errors import AcquireTimeout, LimitFull, SemaphoreClosed
from slotwise.memory import _log
from slotwise.memory._acquisition import GeneralMemoryAcquisition, MemoryAcquisition
from slotwise.memory._base_tracker import BaseTracker, nothing
from slotwise.memory._changes import in_epoch_seconds
from slotwise.memory._line_home import NO_HOME, SHUT, LineHome
from slotwise.memory._quick_lane import Snapshot

if TYPE_CHECKING:
    from slotwise.memory._registry import Registry

# A line is tidied when more than half of it, and more than this, has ended.
_FEW_ENDED = 32

# What has changed by itself where the value is fixed. Shared and therefore never changed.
_NOTHING: deque[tuple[Any, ...]] = deque(maxlen=0)

# How many entries of a long table are searched for holders to name in a message.
_HOLDERS_LOOKED_AT = 100


class _AllHoldTimes(HoldTimes):
    """The hold times of a tracker that times every hold."""

    __slots__ = ()


class Tracker(BaseTracker[MemoryAcquisition], Ledger[MemoryAcquisition]):
    """The shared state behind a name, or behind one private semaphore.

    Beside the queue of the ledger it has the line, in which blocks of one event loop
    wait without the section.
    """

    __slots__ = (
        "__weakref__",
        "adaptation",
        "alarm",
        "closure",
        "ended_tickets",
        "generation",
        "holds",
        "home",
        "is_expiring",
        "last_used",
        "name",
        "registry",
        "retired",
        "unreported",
        "woken",
    )

    adaptation: Adaptation | None  # how its value moves by itself, if it does

    def __init__(
        self,
        value: int | Adaptive,
        name: str | None = None,
        registry: Registry | None = None,
        holders: dict[Hashable, MemoryAcquisition] | None = None,
    ) -> None:
        self.adaptation = None
        self.unreported = _NOTHING
        self.is_expiring = False
        if isinstance(value, Adaptive):
            self.adaptation = adaptation(value, microseconds(clock.now()))
            self.unreported = deque()
            value = value.start
        Ledger.__init__(self, value, holders)
        self.name = name
        self.registry = registry
        self.retired = False
        # Set once it is retired: whether the instances that still refer to it are closed.
        self.generation: Generation | None = None
        # While it is closed everywhere. A tracker that is closed without one was closed for good.
        self.closure: Closure | None = None
        self.last_used = glance.time
        self.alarm = NEVER  # when `_ring` is called next
        self.home = NO_HOME  # who may use the ledger's line outside the section
        self.ended_tickets = 0  # about how many futures in the line are done
        self.woken = NOBODY_WOKEN
        # How long slots are held, once somebody has waited outside the line. It is timed only
        # while somebody does, or with `times_all`.
        self.holds: HoldTimes | None = None

    @property
    def is_ended(self) -> bool:
        """Whether it was closed for good: its instances stay closed."""
        return self.closed and self.closure is None

    # ------------------------------------------------------------- acquiring

    def _check(self, claim: MemoryAcquisition) -> None:
        if self.closed or claim.slots > self.value:
            raise self._refusal(claim)

    def _full_error(self, claim: MemoryAcquisition) -> LimitFull | None:
        overload, waiting = claim.semaphore._overload, self._about_waiting()
        assert overload is not None
        is_full = overload.exceeded(waiting) is not None
        if not is_full and not overload.sheds:
            return None
        estimate, timeout = self.estimate(claim.slots), None if is_full else claim.timeout
        if not is_full and not too_late(estimate, timeout):
            return None
        full = messages.occupancy(
            value=self.value, held=self.in_use, waiting=waiting, paused_for=self.paused_for()
        )
        return messages.limit_full(
            display(self.name), full, waiting=waiting, estimate=estimate, timeout=timeout
        )

    def _try(self, claim: MemoryAcquisition, now: float) -> list[MemoryAcquisition]:
        if self.times_all:
            self._timed_holds().pass_time(now, self.in_use)
        return [claim] if self.try_request(claim, now) else []

    def _queue(
        self, claim: MemoryAcquisition, now: float, until: float | None
    ) -> list[MemoryAcquisition]:
        holds = self._timed_holds() if self.holds is None else self.holds
        if type(holds) is _AllHoldTimes:
            holds.pass_time(now, self.in_use)
        elif not self.waiting:
            holds.begin(now)
        if claim.head_start:
            self._close_line()  # the line doesn't record since when they wait
        return self.request(claim, now, wait_until=until)

    def _replace(self, claim: MemoryAcquisition, now: float) -> list[MemoryAcquisition]:
        self.attention = True  # nobody takes by the quick lane what comes back now
        replaced: list[MemoryAcquisition] = []
        # Blocks have no claims and can't be told, so they are left alone.
        while chosen := self.to_replace(Snapshot(self).claims(), claim.slots):
            for each in chosen:
                # The deletion decides between this and its own release, by the quick lane.
                if self.holders.pop(each.key, None) is not None:
                    if self.deadlines is not None:
                        self.deadlines.discard(each.key)
                    self._free(each, now)
                    replaced.append(each)
            cast("GeneralMemoryAcquisition", claim).replaced = replaced
            if self.try_grant_first(claim, now):  # else somebody was quicker
                return [*self.serve(now), claim]
        return self.serve(now)

    def ask_now(self, claim: MemoryAcquisition) -> bool:
        """Ask for slots without waiting, *in the section*."""
        self._check(claim)
        now = clock.now()
        return bool(self._after_change(self._try(claim, now), now))

    def take_another(self, loop: asyncio.AbstractEventLoop) -> int:
        """Take a number for a block of ``loop`` that the quick lane didn't give; 0 if it waits.

        Fresh numbers may be needed, or somebody was woken whom it need not let pass.
        """
        if self.line or self.woken.any_of(loop):
            return 0
        return self._pop_free() or exclusive(self._take_fresh)

    def _take_fresh(self) -> int:
        if self.line or self.waiting or self.closed or self.paused_until:
            return 0
        return self._take_one() or 0

    # ---------------------------------------------------------------- giving
    # None of these waits or fails: a garbage collection may call them anywhere.

    def _withdraw(self, claim: MemoryAcquisition) -> list[MemoryAcquisition]:
        if claim.named or not claim._slot_number:
            return super()._withdraw(claim)
        # Only once: both a wake-up that is lost with its loop and the waiter's task withdraw it.
        number, claim._slot_number = claim._slot_number, 0
        return self._put_back_in_section(number)

    def take_back(self, acquisition: MemoryAcquisition) -> bool:
        """Free what an acquisition holds; False if it has ended before."""
        if not self._end_hold(acquisition):
            self.keep_task(acquisition.key)
            return False
        _log.released(acquisition, self)
        return True

    def kick(self, acquisition: MemoryAcquisition) -> bool:
        """Free what somebody else holds, and tell them; False if it has ended before."""
        acquisition.ignored()
        if not self._end_hold(acquisition):
            return False
        self.tell_kicked(acquisition)
        return True

    def _end_hold(self, acquisition: MemoryAcquisition) -> bool:
        # The deletion decides between all who want to end the same acquisition.
        try:
            del self.holders[acquisition.key]
        except KeyError:
            return False
        self.last_used = glance.time
        self.change_or_later(self._take_back, acquisition)
        return True

    def _take_back(self, acquisition: MemoryAcquisition) -> list[MemoryAcquisition]:
        now = clock.now()
        if self.deadlines is not None:
            self.deadlines.discard(acquisition.key)
        return self._after_change(self.give(acquisition, now), now)

    def _put_back_in_section(self, number: int) -> list[MemoryAcquisition]:
        now = clock.now()
        if self.holds is not None and (self.waiting or self.times_all):
            self.holds.end(now, self.in_use, 1)  # `_note_end`, inlined
        return self._after_change(self.give_number(number, now), now)

    def hand_over(self, number: int) -> None:
        """Take back a slot that has no claim, whoever waits."""
        home = self.home  # read once: it may change meanwhile
        if (
            (home.asyncio_loop._thread_id == get_ident() or home.is_running_here())
            and not self.attention
            and not self.woken.under_way
        ):
            # The quick lane, continued: straight to the first in the line.
            line = self.line
            while line:
                try:
                    future = line.popleft()
                except IndexError:
                    break
                if home.has_moved and future.get_loop() is not home.loop:
                    # It came while the home was about to change.
                    self._keep_order()
                    self.change_or_later(list, (_line_grant(future, number),))
                    return
                try:
                    if not line:  # else newcomers see the line, and wait in it
                        self.woken.add(future)
                    future.set_result(number)
                    return
                except asyncio.InvalidStateError:  # cancelled, and still in the line
                    self.woken.discard(future)
                    self.ended_tickets -= 1
                    self._keep_order()
        self.last_used = glance.time
        if self.attention:
            self.change_or_later(self._put_back_in_section, number)
            return
        heappush(self.free, number)
        if self.line or self.attention:
            self.look_after_waiters()

    def _keep_order(self) -> None:
        """If nobody is left in the line, let those who were woken from it run before newcomers.

        Only the last of a line is in ``woken``. If that one was cancelled, nobody is.
        """
        if not self.line and self.home.loop is not None:
            self.woken.hold_newcomers_back(self.home.loop)

    def look_after_waiters(self) -> None:
        """Serve those who wait, when somebody on the quick lane saw them."""
        self.change_or_later(self._look_after_waiters)

    def _look_after_waiters(self) -> list[MemoryAcquisition]:
        now = clock.now()
        return self._after_change(self.serve(now), now)

    def forget_deadline(self, key: Hashable) -> None:
        """Take back the deadline of an acquisition that was given back by the quick lane."""
        deadlines = self.deadlines
        if deadlines is not None and deadlines.young.pop(key, None) is None:
            exclusive_or_later(deadlines.discard, key, then=nothing)

    def _after_change(
        self, granted: list[MemoryAcquisition], now: float
    ) -> list[MemoryAcquisition]:
        if granted:
            BaseTracker._after_change(self, granted, now)
        if self.circulating == 0 and self.is_ended and self.registry is not None:
            self.registry.forget(self)
        return granted

    # ----------------------------------------------------------- the estimate

    def time_all_holds(self) -> None:
        """Time every hold from now on: nobody takes the quick lane any more."""
        # An instance may find its tracker while it asks for a slot, in the section.
        exclusive_or_later(self._time_all_holds, then=nothing)

    def _time_all_holds(self) -> None:
        if not self.times_all:
            self.attention = True
            self._close_line()
            known = self._timed_holds()
            self.holds = _AllHoldTimes(known.busy, known.ended)
            self.holds.begin(clock.now())

    def _close_line(self) -> None:
        self.home = SHUT

    @property
    def times_all(self) -> bool:
        """Whether every hold is timed."""
        return type(self.holds) is _AllHoldTimes

    def _timed_holds(self) -> HoldTimes:
        if self.holds is None:
            self.holds = HoldTimes()
        return self.holds

    def _note_end(self, slots: int, now: float) -> None:
        """Note that a hold ends: how long it was counts if somebody waits."""
        if self.holds is not None and (self.waiting or self.times_all):
            self.holds.end(now, self.in_use, slots)

    def _free(self, claim: MemoryAcquisition, now: float) -> None:
        self._note_end(claim.slots, now)
        super()._free(claim, now)
        outcomes = claim._outcomes
        if outcomes is not None and outcomes.retry_after and not self.closed:
            self.apply_pause(outcomes.pauses_for)  # before anybody else is served

    def _lower_attention(self) -> None:
        if not self.times_all:
            super()._lower_attention()

    def estimate(self, slots: int) -> float | None:
        """When a newcomer would get its slots, *in the section*; None if unknown."""
        if slots > self.value:
            raise messages.too_many_slots(display(self.name), slots, self.value)
        self._close_line()  # nothing is timed there
        line = max(len(self.line) - max(self.ended_tickets, 0), 0)
        paused_for = self.paused_for()
        if not line and not self.waiting and self.in_use + slots <= self.value:
            return paused_for
        claims = (claim.slots for claim in self.waiting.values())
        ahead = line + total(claims, len(self.waiting))
        mean = None if self.holds is None else self.holds.mean
        seconds = slots_in(self.in_use + ahead + slots - self.value, self.value, mean)
        return max(seconds or 0.0, paused_for) if paused_for else seconds

    # -------------------------------------------------------------- the line

    def at_home(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether ``loop`` may use the line; it is opened for it if nobody else waits."""
        if self.home.loop is loop:
            return True
        if isinstance(cast("object", loop), TrioRun):
            return False  # its tasks wait one by one, as those of other loops do
        return exclusive(self._at_home, loop)

    def _at_home(self, loop: asyncio.AbstractEventLoop) -> bool:
        if not (self.line or self.waiting or self.closed or self.home.is_shut):
            # Once it has moved, futures of either loop may be found in the line.
            has_moved = self.home.has_moved or self.home.loop not in (None, loop)
            self.home = home = LineHome(loop, has_moved=has_moved)
            if home.asyncio_loop is loop:
                _at_asyncio_homes.add(self)
            self.open_line()
            self._expect_waking()
        return self.home.loop is loop

    def _expect_waking(self, waker: Waker | None = None) -> None:  # noqa: ARG002 - of tiers
        if self.woken is NOBODY_WOKEN:
            self.woken = Woken()

    def serve_newcomer(self, future: asyncio.Future[int]) -> None:
        """Look after a future whose loop saw the quick lane close while it queued."""
        self.change_or_later(self._serve_newcomer, future)

    def _serve_newcomer(self, future: asyncio.Future[int]) -> list[MemoryAcquisition]:
        # If the home changed in that very moment, the new one may have tidied
        # the line and missed it. Being in it twice does no harm.
        if not future.done() and future not in self.line:
            self.line.append(future)
        return self._look_after_waiters()

    def leave_line(self, future: asyncio.Future[int]) -> None:
        """Stop the wait of a block: hand its grant on, or leave an ended ticket behind."""
        self.woken.discard(future)
        if not future.cancelled():
            if future.done():
                if future.exception() is None:
                    self.withdraw(_line_grant(future, future.result()))
                return
            try:
                future.cancel()  # garbage-collected with its loop while still pending
            except RuntimeError:
                pass  # it is cancelled; the closed loop can't tell anybody
        self.ended_tickets += 1
        if self.free or self.circulating < self.value:
            self.look_after_waiters()  # interrupted before its last check
        if (
            self.ended_tickets > _FEW_ENDED
            and self.ended_tickets * 2 > len(self.line)
            and _get_running_loop() is self.home.loop
        ):
            exclusive_or_later(self._tidy_line, then=lambda _: self._keep_order())

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
            line, waiting, closure = list(self.line), len(self.waiting), self.closure
            in_use, value, paused_for = self.in_use, self.value, self.paused_for()
            frozen = self.is_frozen
        waiting += sum(not future.done() for future in line)
        reason = None if closure is None else closure.reason
        return SemaphoreStats(
            *(in_use, value, waiting, closure is not None, reason),
            paused_for=paused_for,
            frozen=frozen,
        )

    @property
    def is_frozen(self) -> bool:
        """Whether an adaptive value stays where it is."""
        return self.adaptation is not None and self.adaptation.frozen

    def accepts(self, value: Any) -> bool:
        if self.adaptation is None:
            return super().accepts(value)
        written = value.written if isinstance(value, Adaptive) else value
        return written is None or written == self.adaptation.options.written

    @property
    def is_resized(self) -> bool:
        """Whether forgetting it would lose something."""
        if self.adaptation is None:
            return super().is_resized
        return self.adaptation.is_worth_keeping(microseconds(clock.now()))

    def _follow(self) -> None:
        super()._follow()
        assert self.adaptation is not None
        self._report_later(self.adaptation)

    def start_over(self) -> None:
        if self.adaptation is not None:
            exclusive(self._start_over, self.adaptation)
            deliver_posted()

    def _start_over(self, known: Adaptation) -> None:
        now = clock.now()
        if not known.frozen:
            self.adaptation = adaptation(known.options, microseconds(now))
            super()._follow()
        self.post(self._after_change(self.serve(now), now))

    # Verbs of `Controlled`, *in the section*; it is open.

    def apply_resize(self, value: int, declared: int) -> None:
        """Change the value; ``declared`` is the one that the asking instance was made with."""
        if self.adaptation is not None:
            self.apply_freeze(value)  # so that it stays there
            return
        now = clock.now()
        refused, granted = self.resize(value, now, declared=declared)
        self.post_refused(refused, self._refusal)
        self.post(self._after_change(granted, now))

    def apply_pause(self, seconds: float) -> None:
        if seconds > 0:
            self.pause(clock.now() + seconds)
            self._ring_by(self.paused_until)

    def apply_freeze(self, value: int | None) -> int:
        now = clock.now()
        if self._moving().freeze(microseconds(now), value):
            super()._follow()  # whoever froze it tells the hooks
        self.post(self._after_change(self.serve(now), now))
        return self.value

    def apply_thaw(self) -> None:
        self._moving().thaw(microseconds(clock.now()))

    def changes(self) -> list[Change]:
        """How the value has moved, oldest first, in epoch seconds; *in the section*."""
        return in_epoch_seconds(self._moving().changes)

    def _moving(self) -> Adaptation:
        if self.adaptation is None:
            raise messages.fixed_value(display(self.name))
        return self.adaptation

    def paused_for(self) -> float:
        """In how many seconds a pause ends; 0.0 if there is none."""
        return max(self.paused_until - clock.now(), 0.0) if self.paused_until else 0.0

    def end(self) -> None:
        """Close for good, *in the section*."""
        self.closure = None
        self._refuse_all()

    def suspend(self, closure: Closure) -> None:
        """Close until `resume`, *in the section*."""
        if not self.is_ended:
            self.closure = closure
            self._refuse_all()

    def resume(self) -> None:
        """Undo `suspend` and a pause, *in the section*, if nobody closed it for good."""
        if self.closure is not None or (self.paused_until and not self.closed):
            self.closure = None
            now = clock.now()
            self.post(self._after_change(self.reopen(now), now))

    def _refuse_all(self) -> None:
        # There may be very many in the line, so their grants are made outside the section.
        # One that is about to queue finds the section busy, and is looked after: see above.
        tickets = deque(self.line)
        if tickets:
            self.line = deque()
        ended, error = self.close(), self._closed_error_maker()
        post(partial(self._refuse_tickets, tickets, error))
        self.post_refused(ended, error)
        self._after_change([], 0.0)

    def _refuse_tickets(
        self, tickets: deque[asyncio.Future[int]], error: Callable[[MemoryAcquisition], Exception]
    ) -> None:
        while tickets:
            some = [_line_grant(ticket, 0) for ticket in islice(tickets, FEW)]
            self._refuse(deque(some), error)
            for _ in some:
                tickets.popleft()

    def _closed_error_maker(self) -> Callable[[object], Exception]:
        closure = self.closure
        return lambda _: self.closed_error(closure)

    def retire_if_idle(self) -> bool:
        """Stop for good if nobody is here, *in the section*; False otherwise."""
        self.retired = self.retire()
        if self.retired and self.registry is not None and self.name is not None:
            self.generation = self.registry.generations.current(self.name)
        return self.retired

    # --------------------------------------------------------------- waking

    def _prepare_to_wake(self, claim: MemoryAcquisition | LineGrant) -> Callable[[], None]:
        if not isinstance(claim, LineGrant):
            return prepare_to_wake(claim.waker, self, claim)  # as for tiers
        if not claim._slot_number:
            error = self._closed_error_maker()
            return partial(self._refuse, deque([cast("MemoryAcquisition", claim)]), error)
        future = cast("asyncio.Future[int]", claim.key)
        if future.done():  # cancelled, and still in the line
            self.ended_tickets -= 1
            return partial(self._pass_on, [cast("MemoryAcquisition", claim)])
        return prepare_to_wake(
            cast("Waker", future), self, cast("MemoryAcquisition", claim), claim._slot_number
        )

    def _pass_on(self, claims: list[MemoryAcquisition]) -> None:
        self._keep_order()
        while claims:
            claim = claims[-1]
            del claims[-1]
            self.withdraw(claim)

    def _refuse_one(
        self,
        claim: MemoryAcquisition | LineGrant,
        failure: Exception,
        refusals: Refusals[Any],
    ) -> None:
        if not isinstance(claim, LineGrant):
            super()._refuse_one(claim, failure, refusals)
            return
        future = cast("asyncio.Future[int]", claim.key)
        if future.done():
            self.ended_tickets -= 1
        else:
            waker = cast("Waker", future)
            refusals.add(waker, claim, 0, None if self.retired else failure)

    def refused(self, claim: MemoryAcquisition | LineGrant) -> None:
        """Withdraw a grant that nobody waits for any more, unless its task does."""
        if isinstance(claim, LineGrant):
            self.ended_tickets -= 1
            self.withdraw(cast("MemoryAcquisition", claim))

    # ---------------------------------------------------------------- errors

    def _timeout_error(self, claim: MemoryAcquisition) -> AcquireTimeout:
        full = messages.occupancy(
            value=self.value,
            held=self.in_use,
            waiting=self._about_waiting(),
            oldest=self._oldest_holders(),
            paused_for=self.paused_for(),
        )
        return messages.no_slot(display(self.name), claim.timeout or 0, full)

    def _oldest_holders(self) -> str:
        """Name the oldest of the holders that have a label or a time.

        Named semaphores share their table of holders, so only the first few are looked at.
        """
        now, found = clock.now(), []
        try:
            first = list(islice(self.holders.values(), _HOLDERS_LOOKED_AT))
        except RuntimeError:  # the table has changed: a message isn't worth another look
            first = []
        for holder in first:
            since = getattr(holder, "since", None)
            if holder.semaphore._tracker is self and (holder.label or since is not None):
                age = None if since is None else now - since
                found.append((socket.gethostname(), os.getpid(), holder.label, age))
                if len(found) == messages.NAMED_HOLDERS:
                    break
        return messages.oldest_holders(found)

    def _about_waiting(self) -> int:
        """How many wait, counted without walking the line: there may be many time-outs."""
        return max(len(self.line) - max(self.ended_tickets, 0), 0) + len(self.waiting)

    def closed_error(self, closure: Closure | None) -> SemaphoreClosed:
        return closed_error(f"{display(self.name)} is", closure)

    def _refusal(self, claim: MemoryAcquisition) -> Exception:
        """Why ``claim`` will never be granted."""
        if self.closed:
            return self.closed_error(self.closure)
        return messages.too_many_slots(display(self.name), claim.slots, self.value)


_at_asyncio_homes: WeakSet[Tracker] = WeakSet()


def _leave_asyncio_homes() -> None:
    """In a forked child: the loops of the parent run in no thread."""
    for tracker in list(_at_asyncio_homes):
        home = tracker.home
        tracker.home = LineHome(
            home.loop, has_moved=home.has_moved, is_shut=home.is_shut, is_copied=True
        )
    _at_asyncio_homes.clear()


fork.in_child(fork.Step.FORGET, _leave_asyncio_homes)


def _line_grant(future: asyncio.Future[int], number: int) -> MemoryAcquisition:
    # The ledger returns these among its claims too.
    return cast("MemoryAcquisition", LineGrant(future, number))
