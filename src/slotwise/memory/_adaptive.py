"""Adaptive limits in memory: every hold is timed, and its end may move the value.

How the value moves is in `slotwise._ledger.adaptation`. Nobody takes the quick lane here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from slotwise._core import events
from slotwise._core.adaptive import Adaptive, Change, Outcome
from slotwise._core.arguments import check_seconds
from slotwise._ledger.adaptation import adaptation
from slotwise._wait import clock
from slotwise.memory._acquisition import GeneralMemoryAcquisition, MemoryAcquisition, MemoryClaim
from slotwise.memory._tracker import Tracker

if TYPE_CHECKING:
    from slotwise.memory._registry import Registry


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


class AdaptiveTracker(Tracker):
    """The shared state of an adaptive semaphore."""

    __slots__ = ("adaptation", "is_expiring", "untold")

    def __init__(
        self,
        options: Adaptive,
        name: str | None = None,
        registry: Registry | None = None,
        holders: dict[Hashable, MemoryClaim] | None = None,
    ) -> None:
        super().__init__(options.start, name, registry, holders)
        self.adaptation = adaptation(options, _microseconds(clock.now()))
        self.is_expiring = False
        self.untold: deque[Change] = deque()  # changes that the hooks don't know yet
        self._time_all_holds()

    def accepts(self, value: Any) -> bool:
        if isinstance(value, Adaptive):
            return value.rules == self.adaptation.options.rules
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

    def _free(self, claim: MemoryClaim, now: float) -> None:
        super()._free(claim, now)
        if isinstance(claim, AdaptiveMemoryAcquisition):
            outcome: Outcome = "dropped" if self.is_expiring else claim.outcome
            held_us, retry_after_us = map(_microseconds, (now - claim.since, claim.retry_after))
            at_us = _microseconds(now)
            self._follow(self.adaptation.end(at_us, held_us, outcome, retry_after_us, claim.slots))

    def kick(self, lease: MemoryAcquisition) -> bool:
        if isinstance(lease, AdaptiveMemoryAcquisition):
            lease.outcome = "ignored"
        return super().kick(lease)

    def _follow(self, is_other: bool) -> None:
        """Take the limit that the adaptation has now; whoever called settles."""
        if is_other:
            self.value = self.adaptation.limit
            self._rebalance()
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
        self._follow(self.adaptation.freeze(_microseconds(now), value))
        self.post(self._after_change(self.settle(now), now))

    def thaw(self) -> None:
        """Move again, *in the section*."""
        self.adaptation.thaw(_microseconds(clock.now()))

    def changes(self) -> list[Change]:
        """How the value has moved, oldest first, in epoch seconds; *in the section*."""
        epoch = time.time() - clock.now()
        return [
            Change(each.at + epoch, each.old, each.new, each.reason)
            for each in self.adaptation.changes
        ]


class AdaptiveMemoryAcquisition(GeneralMemoryAcquisition):
    """Slots of an adaptive semaphore, and how the work under them ended."""

    __slots__ = ("outcome", "retry_after")

    outcome: Outcome
    retry_after: float

    def dropped(self, *, retry_after: float | None = None) -> None:
        self.retry_after = check_seconds("retry_after", retry_after, zero=True) or 0.0
        self.outcome = "dropped"

    def ignored(self) -> None:
        self.outcome = "ignored"

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
        if exc_type is not None and self.outcome == "ok":
            options = self.semaphore._adaptive
            is_drop = options is not None and issubclass(exc_type, options.drop_on)
            self.outcome = "dropped" if is_drop else "ignored"
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
