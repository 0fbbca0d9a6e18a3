"""Adaptive limits in memory: every hold is timed, and its end may move the value.

How the value moves is in `slotwise._ledger.adaptation`. Nobody takes the quick lane here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from slotwise._core import events
from slotwise._core.adaptive import Adaptive, Change, Outcome
from slotwise._core.outcomes import OUTCOME_SLOTS, Outcomes
from slotwise._ledger.adaptation import Adaptation, adaptation
from slotwise._ledger.times import microseconds
from slotwise._wait import clock
from slotwise.memory._acquisition import GeneralMemoryAcquisition, MemoryAcquisition, MemoryClaim
from slotwise.memory._changes import in_epoch_seconds
from slotwise.memory._tracker import Tracker

if TYPE_CHECKING:
    from slotwise.memory._registry import Registry


class AdaptiveTracker(Tracker):
    """The shared state of an adaptive semaphore."""

    __slots__ = ("adaptation", "is_expiring", "untold")

    adaptation: Adaptation

    def __init__(
        self,
        options: Adaptive,
        name: str | None = None,
        registry: Registry | None = None,
        holders: dict[Hashable, MemoryClaim] | None = None,
    ) -> None:
        super().__init__(options.start, name, registry, holders)
        self.adaptation = adaptation(options, microseconds(clock.now()))
        self.is_expiring = False
        self.untold: deque[Change] = deque()  # changes that the hooks don't know yet
        self._time_all_holds()

    def accepts(self, value: Any) -> bool:
        if isinstance(value, Adaptive):
            return value.written == self.adaptation.options.written
        return value is None

    @property
    def is_resized(self) -> bool:
        """Whether it would be a loss to forget it."""
        return self.adaptation.frozen

    def expire(self, now: float) -> tuple[list[MemoryClaim], list[MemoryClaim], list[MemoryClaim]]:
        self.is_expiring = True
        try:
            return super().expire(now)
        finally:
            self.is_expiring = False

    def _ending_of(self, claim: MemoryClaim, now: float) -> tuple[int, Outcome, int]:
        if not isinstance(claim, AdaptiveMemoryAcquisition):
            return 0, "ignored", 0
        outcome: Outcome = "dropped" if self.is_expiring else claim.outcome
        held_us = max(microseconds(now) - microseconds(claim.since), 0)
        return held_us, outcome, microseconds(claim.retry_after)

    def kick(self, lease: MemoryAcquisition) -> bool:
        if isinstance(lease, AdaptiveMemoryAcquisition):
            lease.outcome = "ignored"
        return super().kick(lease)

    def _follow(self) -> None:
        super()._follow()
        self._keep_untold()

    def _keep_untold(self) -> None:
        changes = self.adaptation.changes
        if events.hooks and changes and changes[-1].new == self.value:
            self.untold.append(changes[-1])

    def change_value(self, value: int, declared: int) -> None:  # noqa: ARG002
        """Stay at a value, *in the section*: a resize freezes."""
        self.freeze(value)

    def freeze(self, value: int | None) -> None:
        """Stay at a value, or at the current one, *in the section*."""
        if self.closed:
            raise self.closed_error(self.closure)
        now = clock.now()
        if self.adaptation.freeze(microseconds(now), value):
            super()._follow()  # whoever froze it tells the hooks
        self.post(self._after_change(self.settle(now), now))

    def thaw(self) -> None:
        """Move again, *in the section*."""
        self.adaptation.thaw(microseconds(clock.now()))

    def changes(self) -> list[Change]:
        """How the value has moved, oldest first, in epoch seconds; *in the section*."""
        return in_epoch_seconds(self.adaptation.changes)


class AdaptiveMemoryAcquisition(Outcomes, GeneralMemoryAcquisition):
    """Slots of an adaptive semaphore, and how the work under them ended."""

    __slots__ = OUTCOME_SLOTS

    def give(self) -> bool:
        ended = super().give()
        tracker = self.semaphore._tracker
        while isinstance(tracker, AdaptiveTracker) and tracker.untold:
            try:
                change = tracker.untold.popleft()
            except IndexError:  # another thread was faster
                break
            self.semaphore._tell_resized(change.new, change.reason)
        return ended

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self.__exit__(exc_type, exc, traceback)

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self._leave_with(exc_type)
        super().__exit__(exc_type, exc, traceback)


def new_tracker(
    value: int | Adaptive,
    name: str | None = None,
    registry: Registry | None = None,
    holders: dict[Hashable, MemoryClaim] | None = None,
) -> Tracker:
    """The tracker of a fixed value, or of one that moves."""
    if isinstance(value, Adaptive):
        return AdaptiveTracker(value, name, registry, holders)
    return Tracker(value, name, registry, holders)
