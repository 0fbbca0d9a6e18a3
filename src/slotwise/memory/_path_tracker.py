"""PathTracker: a ledger of paths, in the section, with its alarm.

It is to atomic paths what the Tracker is to a semaphore, and wakes in the same
way: who is granted is decided in the section and woken after it, and a grant
that can't be delivered goes to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, cast

from slotwise._core import messages
from slotwise._core.closing import Closure
from slotwise._core.messages import display
from slotwise._core.paths import KeyStats, TierSpec, TierStats
from slotwise._ledger import NEVER
from slotwise._ledger.path_nodes import UNLIMITED, Node
from slotwise._ledger.paths import PathLedger
from slotwise._wait import clock
from slotwise._wait.section import exclusive_or_later, lock
from slotwise._wait.ttl_cancel import TtlCancel
from slotwise._wait.wakers import Waker, wake
from slotwise._wait.woken import Woken
from slotwise.errors import AcquireTimeout
from slotwise.memory._path_acquisition import MemoryPathAcquisition, TimedMemoryPathAcquisition
from slotwise.memory._tracker import _hand_on, _nothing, announce_cancels, ttl_cancels

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryClaim
    from slotwise.memory._tracker import Tracker

_log = logging.getLogger("slotwise.memory")


class PathTracker(PathLedger[MemoryPathAcquisition]):
    """What all objects of one name share, or what one private object has.

    The verbs of the ledger belong in the section; those defined here go there by
    themselves, unless they say that they want to be called in it.
    """

    __slots__ = (
        "__weakref__",
        "_predecessor",
        "alarm",
        "closure",
        "ended",
        "name",
        "roomy",
        "specs",
        "woken",
    )

    # Between any two calls: it is closed exactly while it has ended, has a closure, or
    # has a predecessor.

    def __init__(
        self, specs: Sequence[TierSpec], name: str | None, predecessor: PathTracker | None = None
    ) -> None:
        """``predecessor``: one of the name that has ended, whose holders have to leave first."""
        super().__init__([spec.value for spec in specs])
        self.ended = False  # closed for good
        self.closure: Closure | None = None  # while it is closed everywhere
        self._predecessor = predecessor
        if predecessor is not None:
            self.close()
        self.specs = tuple(specs)
        self.name = name
        self.alarm = NEVER  # when `_ring` is called next
        self.woken = Woken()
        self.roomy = UNLIMITED  # with so many keys nobody has to look whether some are idle

    def bound_idle(self, max_idle_keys: int) -> None:
        """Remember at most so many idle keys of each tier."""
        for tier in self.tiers:
            tier.max_idle = max_idle_keys
        # Most keys are in the narrowest tier; the others are looked at along with it.
        self.roomy = max_idle_keys

    # ---------------------------------------------------------------- taking

    def ask(
        self, lease: MemoryPathAcquisition, make_waker: Callable[[], Waker]
    ) -> list[MemoryPathAcquisition]:
        """Ask for slots, *in the section*: who is granted now, the lease last if it is.

        A lease that is not granted waits, and has a waker; or it has a failure,
        if it does not want to wait.
        """
        if self.closed:
            self._reopen_perhaps()
            if self.closed:
                raise lease.paths.closed_error()
        lease._slot_number = 0  # until it is granted
        timeout, now = lease.timeout, clock.now()
        if timeout == 0:
            granted = self.settle(now)
            if self.try_request(lease, lease.path, now):
                granted.append(lease)
            else:
                lease.failure = self._timeout_error(lease)
        else:
            until = None if timeout is None else now + timeout
            granted = self.request(lease, lease.path, now, wait_until=until)
            if not granted or granted[-1] is not lease:
                lease.failure = None
                lease.waker = make_waker()
                if until is not None:
                    self._ring_by(until)
        self.trim(now)  # it may have brought a new key
        return self._started(granted, now)

    # ---------------------------------------------------------------- giving
    # None of these waits or fails: a garbage collection may call them anywhere.

    def take_back(self, lease: MemoryPathAcquisition) -> None:
        """Free what a lease held that is no holder any more."""
        exclusive_or_later(self._take_back, lease, then=self.deliver)

    def _take_back(self, lease: MemoryPathAcquisition) -> list[MemoryPathAcquisition]:
        now = clock.now()
        self._free(lease, now)
        return self._after_giving(now)

    def undo(self, taken: Sequence[Node], number: int) -> None:
        """Put back what the quick lane took in vain: a node had nothing, or it was closed.

        ``number`` is that of the last; which one the others get does not matter.
        """
        for node in taken:
            heappush(node.free, number)
        if self.attention:
            self.look_around(taken)

    def look_around(self, nodes: Sequence[Node]) -> None:
        """Serve those who wait, and forget idle keys, when the quick lane saw the need."""
        exclusive_or_later(self._look_around, nodes, then=self.deliver)

    def _look_around(self, nodes: Sequence[Node]) -> list[MemoryPathAcquisition]:
        self.look_after(nodes)
        return self._after_giving(clock.now())

    def _after_giving(self, now: float) -> list[MemoryPathAcquisition]:
        if len(self.tables[0]) > self.roomy:
            self.trim(now)
        return self.go_on(now) if self.work else []

    def keep_task(self, key: Hashable) -> None:
        """Do not cancel the task of an expired lease: it has left, or released."""
        if self.deadlines is not None:
            exclusive_or_later(self._keep_task, key, then=_nothing)

    def _keep_task(self, key: Hashable) -> None:
        # In the section, where `_end_what_is_due` ends a hold and announces the cancel.
        ttl_cancels.keep_task(key, owner=self)

    def withdraw(self, lease: MemoryPathAcquisition) -> None:
        """End a wait whose outcome nobody will see: stop waiting, or hand the grant on."""
        exclusive_or_later(self._withdraw, lease, then=self.deliver)

    def _withdraw(self, lease: MemoryPathAcquisition) -> list[MemoryPathAcquisition]:
        now = clock.now()
        ended = self.cancel if lease.key in self.waiting else self.release
        return self._started(ended(lease.key, now), now)

    def go_on(self, now: float) -> list[MemoryPathAcquisition]:
        """Serve those for whom there may be slots, *in the section*."""
        return self._started(self.settle(now), now)

    def _started(
        self, granted: list[MemoryPathAcquisition], now: float
    ) -> list[MemoryPathAcquisition]:
        if granted and self.deadlines is not None:
            self._start_ttls(granted, now)
        return granted

    # --------------------------------------------------------------- waking

    def deliver(self, leases: Iterable[MemoryPathAcquisition]) -> None:
        """Wake those whose wait has ended, outside the section; then do what was left over."""
        self._wake_all(leases)
        if self.work:
            self._finish()

    def _finish(self) -> None:
        """Do what the bound on the work of one call left over, piece by piece."""
        done = gone = False

        def serve(granted: list[MemoryPathAcquisition]) -> None:
            nonlocal done
            done = True
            self._wake_all(granted)
            if gone:
                self._finish()

        while self.work:
            done = gone = False
            exclusive_or_later(self._finish_some, then=serve)
            # Put off, or taken over by another thread: `serve` goes on after it. The
            # sides look in opposite order, so that at least one sees the other.
            gone = True
            if not done:
                return

    def _finish_some(self) -> list[MemoryPathAcquisition]:
        return self.go_on(clock.now())

    def _wake_all(self, leases: Iterable[MemoryPathAcquisition]) -> None:
        undelivered = [lease for lease in leases if not self._wake(lease)]
        if undelivered:
            # Their event loop is closed. What they were granted is for the next ones.
            _hand_on(cast("Tracker", self), cast("list[MemoryClaim]", undelivered))

    def _wake(self, lease: MemoryPathAcquisition) -> bool:
        return wake(lease.waker, self, lease)

    def refused(self, lease: MemoryPathAcquisition) -> None:
        """Nobody waits any more for what was brought; its task sees to it."""

    # ------------------------------------------------------ looking, steering

    def stats(self) -> dict[str, TierStats]:
        with lock:
            # Every path goes through every tier.
            active, waiting = len(self.holders), len(self.waiting)
            return {
                spec.name: TierStats(active, waiting, tier.value, self._keys(spec, tier.index))
                for spec, tier in zip(self.specs, self.tiers, strict=True)
            }

    def _keys(self, spec: TierSpec, index: int) -> dict[str, KeyStats]:
        if not spec.keyed:
            return {}
        tier = self.tiers[index]
        keys = dict.fromkeys(cast("dict[str, object]", tier.nodes), KeyStats(0, 0, tier.value))
        for key, node in tier.nodes.items():
            if node.in_use or node.waiting or key in tier.own_values:
                keys[cast("str", key)] = KeyStats(node.in_use, node.waiting, tier.value_of(key))
        return keys

    def change_value(self, index: int, value: int, key: str | None) -> list[MemoryPathAcquisition]:
        """Change the value of a tier or of one key, *in the section*: who is granted."""
        now = clock.now()
        return self._started(self.resize(index, value, key, now, one=key is not None), now)

    # --------------------------------------------------------------- closing

    def end(self) -> list[MemoryPathAcquisition]:
        """Close for good, *in the section*: those whose wait this ends."""
        self.ended = True
        return self._refuse_all()

    def suspend(self, closure: Closure) -> list[MemoryPathAcquisition]:
        """Close until `resume`, *in the section*: those whose wait this ends."""
        self.closure = closure
        return self._refuse_all()

    def resume(self) -> None:
        """Undo `suspend`, *in the section*."""
        self.closure = None
        self._reopen_perhaps()

    @property
    def last_held(self) -> PathTracker | None:
        """This one or its predecessor, if somebody holds something of it."""
        return self if self.holders else self._predecessor

    def _refuse_all(self) -> list[MemoryPathAcquisition]:
        waiters = self.close(clock.now())
        for lease in waiters:
            lease.failure = lease.paths.closed_error()
        return waiters

    def _reopen_perhaps(self) -> None:
        if self._predecessor is not None and not self._predecessor.holders:
            self._predecessor = None
        if not self.ended and self.closure is None and self._predecessor is None:
            self.reopen()

    # ------------------------------------------------------------------ time

    def _start_ttls(self, leases: Iterable[MemoryPathAcquisition], now: float) -> None:
        for lease in leases:
            if lease.ttl is not None:
                cast("TimedMemoryPathAcquisition", lease).since = now
                self._ring_by(now + lease.ttl)

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
    ) -> tuple[float, list[MemoryPathAcquisition], list[TtlCancel], list[MemoryPathAcquisition]]:
        self.alarm = NEVER
        now = clock.now()
        holders, waiters, granted = self.expire(now)
        for lease in waiters:
            lease.failure = self._timeout_error(lease)
        cancels = announce_cancels(holders, self)
        self._started(granted, now)
        self._ring_by(self.next_deadline())
        return now, holders, cancels, waiters + granted

    def _tell_whose_time_is_up(
        self,
        outcome: tuple[
            float, list[MemoryPathAcquisition], list[TtlCancel], list[MemoryPathAcquisition]
        ],
    ) -> None:
        now, holders, cancels, ended = outcome
        self.deliver(ended)  # first: what follows runs other people's code
        for lease in holders:
            lease.lost.set(messages.ttl_ended(lease.ttl))
        for cancel in cancels:
            cancel.send()
        for lease in holders:
            _log.warning(
                "a slot of each of %s expired: %s held them for %.3f s, its ttl is %g s",
                self.title,
                lease.acquisition_id,
                now - cast("TimedMemoryPathAcquisition", lease).since,
                lease.ttl,
                extra={"semaphore_name": self.name, "acquisition_id": lease.acquisition_id},
            )

    # -------------------------------------------------------------- messages

    @property
    def title(self) -> str:
        return f"the tiers {', '.join(spec.name for spec in self.specs)}" + (
            "" if self.name is None else f" of {display(self.name)}"
        )

    def _timeout_error(self, lease: MemoryPathAcquisition) -> AcquireTimeout:
        """Says which tier is in the way."""
        where = "nothing of it"
        for spec, tier, key in zip(self.specs, self.tiers, lease.path, strict=True):
            node = tier.nodes.get(key)
            if node is not None and not node.has_slot_for(None):
                which = f"{spec.name} {key!r}" if spec.keyed else spec.name
                where = f"{which}: {node.in_use} of {node.limit} held, {node.waiting} waiting"
                if node.in_use < node.limit:
                    where += ", the rest kept for an older request"
                break
        return AcquireTimeout(f"no slot of {self.title} in {lease.timeout or 0:g} s; {where}")
