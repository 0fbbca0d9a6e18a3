"""Adaptive limits in memory: every hold is timed, and its end may move the value.

How the value moves is in `slotwise._ledger.adaptation`. On the quick lane, a block that succeeds
only notes how long it was held: that can't move the value before the time that the adaptation has
set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING, Any, Self

from slotwise._core.adaptive import Adaptive, Change
from slotwise._core.messages import context_reused
from slotwise._core.outcomes import OUTCOME_SLOTS, Outcomes
from slotwise._ledger.adaptation import Adaptation, adaptation
from slotwise._ledger.times import microseconds
from slotwise._wait import clock
from slotwise._wait.clock import glance
from slotwise._wait.deliveries import deliver_posted
from slotwise._wait.section import exclusive
from slotwise.memory._acquisition import GeneralMemoryAcquisition, MemoryAcquisition, MemoryClaim
from slotwise.memory._adapting import AdaptingTracker, OutcomeAcquisition
from slotwise.memory._changes import in_epoch_seconds
from slotwise.memory._ids import next_key
from slotwise.memory._log import logged
from slotwise.memory._tracker import Tracker

if TYPE_CHECKING:
    from slotwise.memory._registry import Registry
    from slotwise.memory._semaphore import MemorySemaphore


class AdaptiveTracker(AdaptingTracker[MemoryClaim], Tracker):
    """The shared state of an adaptive semaphore."""

    __slots__ = ("adaptation", "is_expiring", "look_at", "succeeded", "unreported")

    adaptation: Adaptation

    def __init__(
        self,
        options: Adaptive,
        name: str | None = None,
        registry: Registry | None = None,
        holders: dict[Hashable, MemoryClaim] | None = None,
    ) -> None:
        super().__init__(options.start, name, registry, holders)
        now = clock.now()
        self.adaptation = adaptation(options, microseconds(now))
        self.is_expiring = False
        self.unreported = deque()
        # How long blocks that succeeded on the quick lane were held, all before `look_at`.
        self.succeeded: list[float] = []
        self.look_at = 0.0
        self._look_later(now)

    def _look_later(self, now: float) -> None:
        self.look_at = self.adaptation.quiet_until(microseconds(now)) / 1_000_000

    def _count_succeeded(self) -> None:
        """Count those of the quick lane, *in the section*; others may add to them meanwhile."""
        count = len(self.succeeded)
        if count:
            held = sum(self.succeeded[:count])
            del self.succeeded[:count]
            before_us = microseconds(self.look_at)
            self.adaptation.add_successes(count, microseconds(max(held, 0.0)), before_us)

    def _free(self, claim: MemoryClaim, now: float) -> None:
        self._count_succeeded()
        super()._free(claim, now)
        self._look_later(now)
        if isinstance(claim, Outcomes) and claim.retry_after and not self.closed:
            self.begin_pause(claim._pauses_for, now)  # before anybody else is served

    def accepts(self, value: Any) -> bool:
        if isinstance(value, Adaptive):
            return value.written == self.adaptation.options.written
        return value is None

    @property
    def is_resized(self) -> bool:
        """Whether forgetting it would lose something."""
        return self.adaptation.is_worth_keeping(microseconds(clock.now()))

    def kick(self, acquisition: MemoryAcquisition) -> bool:
        acquisition.ignored()
        return super().kick(acquisition)

    def _follow(self) -> None:
        super()._follow()
        self._report_later(self.adaptation)

    def change_value(self, value: int, declared: int) -> None:  # noqa: ARG002
        """Stay at a value, *in the section*: a resize freezes."""
        self.freeze(value)

    def freeze(self, value: int | None) -> None:
        """Stay at a value, or at the current one, *in the section*."""
        if self.closed:
            raise self.closed_error(self.closure)
        now = clock.now()
        self._count_succeeded()
        if self.adaptation.freeze(microseconds(now), value):
            super()._follow()  # whoever froze it tells the hooks
        self._look_later(now)
        self.post(self._after_change(self.serve(now), now))

    def thaw(self) -> None:
        """Move again, *in the section*."""
        if self.closed:
            raise self.closed_error(self.closure)
        now = clock.now()
        self._count_succeeded()
        self.adaptation.thaw(microseconds(now))
        self._look_later(now)

    def start_over(self) -> None:
        exclusive(self._start_over)
        deliver_posted()

    def _start_over(self) -> None:
        now = clock.now()
        self.succeeded.clear()
        if not self.adaptation.frozen:
            self.adaptation = adaptation(self.adaptation.options, microseconds(now))
            super()._follow()
        self._look_later(now)
        self.post(self._after_change(self.serve(now), now))

    @property
    def is_frozen(self) -> bool:
        return self.adaptation.frozen

    def changes(self) -> list[Change]:
        """How the value has moved, oldest first, in epoch seconds; *in the section*."""
        return in_epoch_seconds(self.adaptation.changes)


def _tell_changes(semaphore: MemorySemaphore) -> None:
    """Tell the hooks how the value has moved."""
    tracker = semaphore._tracker
    if isinstance(tracker, AdaptiveTracker) and tracker.unreported:
        tracker.tell_changes(semaphore._tell_resized)


class QuickAdaptiveMemoryAcquisition(OutcomeAcquisition, MemoryAcquisition):
    """One slot of an adaptive semaphore, without a ttl, and how the work under it ended."""

    __slots__ = OUTCOME_SLOTS

    def take(self) -> bool:
        self.since = clock.now()  # before it has the slot: a signal handler may raise
        taken: bool = super().take()
        return taken

    def give(self) -> bool:
        ended = self.semaphore._tracker.take_back(self)
        _tell_changes(self.semaphore)
        return ended

    async def __aenter__(self) -> Self:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise context_reused(self._title)
        self.key = key
        tracker = self.semaphore._tracker
        number = 0
        try:  # `_quick_lane.take`, inlined
            self.since = clock.now()
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._slot_number = number = heappop(tracker.free)
                tracker.holders[key] = self
                return self
        except LookupError:
            pass
        except BaseException:
            self._undo_take(number)
            raise
        await self.semaphore._acquire(self)
        return self

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        tracker: Any = self.semaphore._tracker
        try:
            now = clock.now()
            if (
                exc_type is None
                and self.outcome == "ok"
                and now < tracker.look_at
                and not logged[DEBUG]
            ):
                del tracker.holders[self.key]
                if tracker.line or tracker.attention:  # `_quick_lane.give`, inlined
                    tracker.hand_over(self._slot_number)
                else:
                    tracker.last_used = glance.time
                    heappush(tracker.free, self._slot_number)
                    if tracker.line or tracker.attention:
                        tracker.look_after_waiters()
                tracker.succeeded.append(now - self.since)
                return
        except KeyError:  # it has ended before, was never entered, or is perhaps logged
            pass
        except BaseException:
            self.leave_interrupted()
            raise
        self.__exit__(exc_type, exc, traceback)


class AdaptiveMemoryAcquisition(OutcomeAcquisition, GeneralMemoryAcquisition):
    """Slots of an adaptive semaphore, and how the work under them ended."""

    __slots__ = OUTCOME_SLOTS

    def give(self) -> bool:
        ended = super().give()
        _tell_changes(self.semaphore)
        return ended


def new_tracker(
    value: int | Adaptive,
    name: str | None = None,
    registry: Registry | None = None,
    holders: dict[Hashable, MemoryClaim] | None = None,
) -> Tracker:
    """Return a tracker for a fixed value, or for one that moves."""
    if isinstance(value, Adaptive):
        return AdaptiveTracker(value, name, registry, holders)
    return Tracker(value, name, registry, holders)
