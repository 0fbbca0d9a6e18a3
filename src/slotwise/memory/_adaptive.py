"""Adaptive limits in memory: every hold is timed, and its end may move the value.

How the value moves is in `slotwise._ledger.adaptation`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from slotwise._core.adaptive import Adaptive, Change
from slotwise._ledger.adaptation import Adaptation, adaptation
from slotwise._ledger.times import microseconds
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted
from slotwise._wait.section import exclusive
from slotwise.memory._acquisition import MemoryAcquisition
from slotwise.memory._adapting import AdaptingTracker
from slotwise.memory._changes import in_epoch_seconds
from slotwise.memory._tracker import Tracker

if TYPE_CHECKING:
    from slotwise.memory._registry import Registry


class AdaptiveTracker(AdaptingTracker[MemoryAcquisition], Tracker):
    """The shared state of an adaptive semaphore."""

    __slots__ = ("adaptation", "is_expiring", "unreported")

    adaptation: Adaptation

    def __init__(
        self,
        options: Adaptive,
        name: str | None = None,
        registry: Registry | None = None,
        holders: dict[Hashable, MemoryAcquisition] | None = None,
    ) -> None:
        super().__init__(options.start, name, registry, holders)
        now = clock.now()
        self.adaptation = adaptation(options, microseconds(now))
        self.is_expiring = False
        self.unreported = deque()

    def _free(self, claim: MemoryAcquisition, now: float) -> None:
        super()._free(claim, now)
        outcomes = claim._outcomes
        if outcomes is not None and outcomes.retry_after and not self.closed:
            self.begin_pause(outcomes.pauses_for, now)  # before anybody else is served

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
        if self.adaptation.freeze(microseconds(now), value):
            super()._follow()  # whoever froze it tells the hooks
        self.post(self._after_change(self.serve(now), now))

    def thaw(self) -> None:
        """Move again, *in the section*."""
        if self.closed:
            raise self.closed_error(self.closure)
        now = clock.now()
        self.adaptation.thaw(microseconds(now))

    def start_over(self) -> None:
        exclusive(self._start_over)
        deliver_posted()

    def _start_over(self) -> None:
        now = clock.now()
        if not self.adaptation.frozen:
            self.adaptation = adaptation(self.adaptation.options, microseconds(now))
            super()._follow()
        self.post(self._after_change(self.serve(now), now))

    @property
    def is_frozen(self) -> bool:
        return self.adaptation.frozen

    def changes(self) -> list[Change]:
        """How the value has moved, oldest first, in epoch seconds; *in the section*."""
        return in_epoch_seconds(self.adaptation.changes)


def new_tracker(
    value: int | Adaptive,
    name: str | None = None,
    registry: Registry | None = None,
    holders: dict[Hashable, MemoryAcquisition] | None = None,
) -> Tracker:
    """Return a tracker for a fixed value, or for one that moves."""
    if isinstance(value, Adaptive):
        return AdaptiveTracker(value, name, registry, holders)
    return Tracker(value, name, registry, holders)
