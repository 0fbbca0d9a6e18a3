"""PathTracker: what all objects of the same tiers share.

What it shares with the tracker of a semaphore is in `_base_tracker`. Here is what only tiers
have: keys that come and go, work that is done piece by piece, and successors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from heapq import heappush
from typing import cast

from slotwise._core.adaptive import Change
from slotwise._core.closing import Closure
from slotwise._core.messages import limit_full, no_slot
from slotwise._core.overload import too_late
from slotwise._core.paths import (
    Path,
    PathStats,
    TierSpec,
    TierStats,
    fair_tiers,
    part_of,
    pausing,
    title_of,
)
from slotwise._core.rates import Rate
from slotwise._ledger import NEVER
from slotwise._ledger.adaptation import adaptation
from slotwise._ledger.base import BaseLedger
from slotwise._ledger.estimates import HoldTimes
from slotwise._ledger.idle_nodes import trim
from slotwise._ledger.path_estimates import path_in
from slotwise._ledger.path_fullness import fullness, never_fits, path_stats, tier_stats
from slotwise._ledger.path_nodes import UNLIMITED, Node
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateNode
from slotwise._ledger.times import microseconds
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, post
from slotwise._wait.section import exclusive_or_later, lock
from slotwise._wait.wakers import Waker, prepare_to_wake
from slotwise._wait.woken import Woken
from slotwise.errors import AcquireTimeout, LimitFull
from slotwise.memory._base_tracker import BaseTracker
from slotwise.memory._changes import in_epoch_seconds
from slotwise.memory._loop_alarm import LATE_US, LoopAlarm
from slotwise.memory._path_acquisition import MemoryPathAcquisition
from slotwise.memory._unfilled import unfilled


class PathTracker(BaseTracker[MemoryPathAcquisition], PathLedger[MemoryPathAcquisition]):
    """What all objects of one name share, or what one private object has."""

    __slots__ = (
        "__weakref__",
        "_predecessor",
        "alarm",
        "closure",
        "ended",
        "has_keys",
        "holds",
        "is_expiring",
        "is_rated",
        "loop_alarm",
        "name",
        "roomy",
        "specs",
        "times_all",
        "unreported",
        "woken",
    )

    # Between any two calls: it is closed exactly while it has ended, has a closure, or
    # has a predecessor.

    def __init__(
        self, specs: Sequence[TierSpec], name: str | None, predecessor: PathTracker | None = None
    ) -> None:
        """``predecessor`` is an ended tracker of the name, whose holders have to leave first."""
        values = [None if spec.by_key else spec.adaptive or spec.value for spec in specs]
        PathLedger.__init__(self, values, *fair_tiers(specs))
        # Whether anything is a rate: then `take_at_once` is the quick way, in the section.
        self.is_rated = self.refills is not None and not self.has_adaptive
        self.ended = False  # closed for good
        self.closure: Closure | None = None  # while it is closed everywhere
        self._predecessor = predecessor
        if predecessor is not None:
            self.close()
        self.specs = tuple(specs)
        self.has_keys = any(spec.keyed for spec in specs)
        self.name = name
        self.alarm = NEVER  # when `_ring` is called next
        self.loop_alarm = LoopAlarm()
        self.woken = Woken()
        # How long paths are held. It is timed only while somebody waits, or with `times_all`;
        # the quick lane doesn't record since when a path is held.
        self.holds = HoldTimes()
        self.times_all = False
        self.is_expiring = False
        # Changes of adaptive values that the hooks don't know yet, with the tier and the key.
        self.unreported = deque()
        self.roomy = UNLIMITED  # up to this many keys, none has to be checked for idleness

    def bound_idle(self, max_idle_keys: int) -> None:
        """Remember at most ``max_idle_keys`` idle keys of each tier."""
        for tier in self.tiers:
            tier.max_idle = max_idle_keys
        # Most keys are in the narrowest tier; the others are checked along with it.
        self.roomy = max_idle_keys

    # ------------------------------------------------------------- acquiring

    def _check(self, claim: MemoryPathAcquisition) -> None:
        if self.closed:
            self._reopen_perhaps()
            if self.closed:
                raise claim.paths.closed_error()
        if claim.needs is not None:
            error = self._never_fits(claim.path, claim.needs)
            if error is not None:
                raise error
        claim._slot_number = 0  # until it is granted

    def _full_error(self, claim: MemoryPathAcquisition) -> LimitFull | None:
        overload = claim.paths._overload
        assert overload is not None
        nodes = [tier.nodes.get(key) for tier, key in zip(self.tiers, claim.path, strict=True)]
        at_nodes = [0 if node is None else node.waiting for node in nodes]
        waiting, timeout = overload.exceeded(len(self.waiting), at_nodes), None
        if waiting is None and not overload.sheds:
            return None
        estimate = self.estimate(claim.path, claim.needs)
        if waiting is None:
            waiting, timeout = max(at_nodes), claim.timeout
            if not too_late(estimate, timeout):
                return None
        full = self._fullness(claim)
        return limit_full(self.title, full, waiting=waiting, estimate=estimate, timeout=timeout)

    def estimate(self, path: tuple[Hashable, ...], needs: Sequence[int] | None) -> float | None:
        """When a newcomer would get a path, *in the section*; None if unknown."""
        if self.closed:
            self._reopen_perhaps()
        if needs is not None:
            error = self._never_fits(path, needs)
            if error is not None:
                raise error
        return None if self.closed else path_in(self, path, needs, clock.now(), self.holds.mean)

    def time_all_holds(self) -> None:
        """Time every hold from now on, *in the section*: nobody takes the quick lane any more."""
        self.times_all = self.attention = True
        self.timed()  # what has deadlines is not given back by a shortcut

    def _put_back(self, claim: MemoryPathAcquisition, now: float) -> None:
        if self.waiting or self.times_all:
            since = getattr(claim, "since", None)
            if since is not None:
                self.holds.note(now - since)
        PathLedger._put_back(self, claim, now)

    def _lower_attention(self) -> None:
        if not self.times_all:
            super()._lower_attention()

    def _try(self, claim: MemoryPathAcquisition, now: float) -> list[MemoryPathAcquisition]:
        self.check_request(claim, claim.path, now)  # what is granted next has to be returned
        granted = self.serve(now)
        if self.try_request(claim, claim.path, now, claim.weight):
            granted.append(claim)
        if self.has_keys:
            trim(self, now)  # it may have brought a new key
        return granted

    def _queue(
        self, claim: MemoryPathAcquisition, now: float, until: float | None
    ) -> list[MemoryPathAcquisition]:
        weight = 1.0 if self.queue.fair is None else claim.weight
        granted = self.request(claim, claim.path, now, wait_until=until, weight=weight)
        if self.has_keys and (granted or claim.group.head is claim):  # else its keys are known
            for nodes in self.tables:
                if len(nodes) > self.roomy:
                    trim(self, now)
                    break
        return granted

    def _after_change(
        self, granted: list[MemoryPathAcquisition], now: float
    ) -> list[MemoryPathAcquisition]:
        if self.refills is not None:
            if self.name is not None:
                unfilled[self.name] = self
            self._ring_when_refilled(now)
        for claim in granted:  # as `BaseTracker._after_change` does
            claim.since = now
            if claim.ttl is not None:
                self._ring_by(now + claim.ttl)
        return granted

    def take_now(self, claim: MemoryPathAcquisition) -> bool:
        """Take what a claim needs if nobody waits and it is there, *in the section*."""
        claim.since = now = clock.now()
        taken = self.take_at_once(claim, claim.path, now)
        if taken and self.name is not None:
            unfilled[self.name] = self
        return taken

    # ------------------------------------------------------------- rates

    def _expect_waking(self, waker: Waker) -> None:
        if self.refills is not None:
            self.loop_alarm.expect(waker, alone=len(self.waiting) == 1)

    def _ring_when_refilled(self, now: float) -> None:
        """Have those who lack only time served when it has passed."""
        when = self.queue.next_refill()
        if when < NEVER and not self.loop_alarm.set(when, now, self._ring_in_loop, self._is_roomy):
            self._ring_by(when)

    def _is_roomy(self) -> bool:
        """Return whether a check that is as late as a loop's timer can be loses nothing."""
        refills = self.refills
        assert refills
        node = refills[0][2]
        first = node.first_parked()
        lacking = first is not None and node.rate.burst - first.need(node)
        return lacking * node.rate.unit >= LATE_US * node.rate.gain

    def _next_alarm(self) -> float:
        if self.loop_alarm.when <= self.queue.next_refill():
            # For refills, a loop has its own alarm.
            return min(BaseLedger.next_deadline(self), self.next_pause_end())
        return self.next_deadline()

    def _ring_in_loop(self, when: float) -> None:
        if when == self.loop_alarm.when:
            self.change_or_later(self._serve_refilled)

    def _serve_refilled(self) -> list[MemoryPathAcquisition]:
        self.loop_alarm.when = NEVER
        now = clock.now()
        if BaseLedger.next_deadline(self) <= now:
            self._ring_by(now)  # first those whose time is up; then the others are served
            return []
        return self.go_on(now)

    def correct(self, key: int, costs: Mapping[int, int]) -> list[MemoryPathAcquisition]:
        """Correct what was taken of rates, *in the section*; return who is granted now."""
        now = clock.now()
        return self._after_change(self.charge(key, costs, now), now)

    def apply_refill(self, index: int, key: str | None) -> None:
        now = clock.now()
        self.post(self._after_change(self.refill_tier(index, key, now), now))

    def _withdraw(self, claim: MemoryPathAcquisition) -> list[MemoryPathAcquisition]:
        if self.refills is None or claim.key in self.waiting:
            return super()._withdraw(claim)
        # Nobody has seen the grant: the buckets are as if there had been none.
        now = clock.now()
        return self._after_change(self.undo_grant(claim.key, now), now)

    # ------------------------------------------------------------- adapting

    def _count_end(self, claim: MemoryPathAcquisition, now: float) -> None:
        super()._count_end(claim, now)
        outcomes = claim._outcomes
        seconds = 0.0 if outcomes is None else outcomes.pauses_for
        for index, key in pausing(claim.paths._specs, cast("Path", claim.path)) if seconds else ():
            self.apply_pause(index, key, seconds)  # before anybody else is served

    def _follow(self, node: Node) -> None:
        super()._follow(node)
        assert node.adaptation is not None
        self._report_later(node.adaptation, node.tier, node.key)

    def changes_of(self, index: int, key: str | None) -> list[Change]:
        """How a value has moved, in epoch seconds, *in the section*."""
        node = self.tiers[index].nodes.get(key)
        return [] if node is None else in_epoch_seconds(node.adaptation.changes)

    # Verbs of `Controlled`, *in the section*; it is open.

    def apply_freeze(self, index: int, key: str | None, value: int | None) -> int:
        now = clock.now()
        granted = self.freeze(index, value, key, now, one=key is not None)
        self.post(self._after_change(granted, now))
        frozen: int = self.tiers[index].value_of(key)
        return frozen

    def apply_thaw(self, index: int, key: str | None) -> None:
        self.tiers[index].thaw(key, clock.now(), one=key is not None)

    def start_over(self) -> None:
        self.change(self._start_over)

    def _start_over(self) -> list[MemoryPathAcquisition]:
        """Fill all buckets, and begin to measure again, *in the section*."""
        now = clock.now()
        for tier in self.tiers:
            nodes = list(tier.nodes.values())
            for node in nodes:
                if isinstance(node, RateNode):
                    node.fill(now)
                elif node.adaptation is not None and not node.adaptation.frozen:
                    node.adaptation = adaptation(node.adaptation.options, microseconds(now))
                    self._follow(node)
            self.look_after(nodes)
        return self.go_on(now)

    # ------------------------------------------------------------- releasing
    # None of these waits or fails: a garbage collection may call them anywhere.

    def take_back(self, acquisition: MemoryPathAcquisition) -> None:
        """Free what an acquisition held that is no longer a holder."""
        exclusive_or_later(self._take_back, acquisition, then=deliver_posted)

    def _take_back(self, acquisition: MemoryPathAcquisition) -> None:
        now = clock.now()
        if self.is_rated and self.give_at_once(acquisition, now):
            return
        if self.can_hand_over():
            granted = self._after_change(self.hand_over(acquisition, now), now)
            if len(self.tables[0]) > self.roomy:
                trim(self, now)
        else:
            self._free(acquisition, now)
            granted = self._after_giving(now)
        self.post(granted)

    def undo(self, taken: Sequence[Node], number: int) -> None:
        """Put back what the quick lane took in vain: a node had nothing, or it was closed.

        ``number`` is that of the last tier; which numbers the others get does not matter.
        """
        for node in taken:
            heappush(node.free, number)
        if self.attention:
            self.look_around(taken)

    def look_around(self, nodes: Sequence[Node]) -> None:
        """Serve those who wait, and forget idle keys, when the quick lane saw the need."""
        self.change_or_later(self._look_around, nodes)

    def _look_around(self, nodes: Sequence[Node]) -> list[MemoryPathAcquisition]:
        self.look_after(nodes)
        return self._after_giving(clock.now())

    def _after_giving(self, now: float) -> list[MemoryPathAcquisition]:
        if len(self.tables[0]) > self.roomy:
            trim(self, now)
        return self._after_change(self.serve(now), now) if self.queue.work else []

    def go_on(self, now: float) -> list[MemoryPathAcquisition]:
        """Serve those for whom there may be slots, *in the section*."""
        return self._after_change(self.serve(now), now)

    # --------------------------------------------------------------- waking

    def post(self, claims: Sequence[MemoryPathAcquisition]) -> None:
        for claim in claims:
            post(prepare_to_wake(claim.waker, self, claim))  # as `BaseTracker.post` does
        if self.queue.work:
            # What the bound on the work of one call left over is done piece by piece.
            post(self._do_more)

    def _do_more(self) -> None:
        self.change_or_later(self._finish_some)

    def _finish_some(self) -> list[MemoryPathAcquisition]:
        return self.go_on(clock.now())

    # ------------------------------------------------------ looking, steering

    def stats(self) -> dict[str, TierStats]:
        with lock:  # only to copy: there may be very many keys
            waiting = len(self.waiting)
            nodes = [list(tier.nodes.items()) for tier in self.tiers]
        return tier_stats(self, self.specs, nodes, waiting, clock.now())

    def stats_of(self, path: Path) -> PathStats:
        """How full the tiers of one path are, *in the section*."""
        if self.closed:
            self._reopen_perhaps()
        return PathStats(path_stats(self, path, clock.now()), self.closed, self.closure)

    def apply_resize(self, index: int, key: str | None, value: int | Rate) -> None:
        now = clock.now()
        refused, granted = self.resize(index, value, key, now, one=key is not None)
        for claim in refused:
            assert claim.needs is not None
            claim.failure = self._never_fits(claim.path, claim.needs)
        self.post(refused + self._after_change(granted, now))

    def apply_pause(self, index: int, key: str | None, seconds: float) -> None:
        if seconds > 0 and self.is_open():
            now = clock.now()
            self.pause(index, now + seconds, key)
            self._ring_by(now + seconds)
            if self.name is not None:
                unfilled[self.name] = self

    def is_open(self) -> bool:
        """Whether it can be used, *in the section*."""
        if self.closed:
            self._reopen_perhaps()
        return not self.closed

    # --------------------------------------------------------------- closing

    def end(self) -> None:
        """Close for good, *in the section*."""
        self.ended = True
        self._refuse_all()

    def suspend(self, closure: Closure) -> None:
        """Close until `resume`, *in the section*."""
        self.closure = closure
        self._refuse_all()

    def resume(self) -> None:
        """Undo `suspend`, and end pauses, *in the section*."""
        self.closure = None
        self._reopen_perhaps()
        if self.paused:
            now = clock.now()
            self.post(self._after_change(self.end_pauses(now), now))

    @property
    def last_held(self) -> PathTracker | None:
        """This one or its predecessor, if somebody holds something of it."""
        return self if self.holders else self._predecessor

    def _refuse_all(self) -> None:
        self.post_refused(
            self.close(clock.now()), lambda acquisition: acquisition.paths.closed_error()
        )

    def _reopen_perhaps(self) -> None:
        if self._predecessor is not None and not self._predecessor.holders:
            self._predecessor = None
        if not self.ended and self.closure is None and self._predecessor is None:
            self.reopen()

    # -------------------------------------------------------------- messages

    @property
    def title(self) -> str:
        return title_of(self.specs, self.name)

    def _timeout_error(self, claim: MemoryPathAcquisition) -> AcquireTimeout:
        return no_slot(self.title, claim.timeout or 0, self._fullness(claim))

    def _fullness(self, claim: MemoryPathAcquisition) -> str:
        """Return which tier has no room, and why."""
        return fullness(self, self.specs, claim.path, claim.needs, clock.now())

    def _never_fits(self, path: tuple[Hashable, ...], needs: Sequence[int]) -> ValueError | None:
        """Why a path will never be granted, if that is so."""
        tier = self.unfit(needs, path)
        if tier is None:
            return None
        index, key = tier.index, path[tier.index]
        which = part_of(self.specs, self.name, index, key)
        return never_fits(which, needs[index], tier.value_of(key), self.specs[index].adaptive)
