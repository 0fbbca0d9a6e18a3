"""Acquisitions of memory tiers of which some are adaptive: timed, and with an outcome.

How the values move is in `slotwise._ledger.adaptation`. Nobody takes the quick lane here.
"""

from __future__ import annotations

from typing import Any

from slotwise._core.outcomes import OUTCOME_SLOTS, Outcomes
from slotwise.memory._path_acquisition import LargeMemoryPathAcquisition
from slotwise.memory._path_observed import ObservedLargeMemoryPathAcquisition


class _OutcomeAcquisition(Outcomes, LargeMemoryPathAcquisition):
    __slots__ = ()

    def give(self) -> bool:
        ended = super().give()
        tracker = self.paths._tracker
        if tracker.unreported:
            tracker.tell_changes(self.paths._tell_adapted)
        return ended

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self.__exit__(exc_type, exc, traceback)

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self._leave_with(exc_type)
        super().__exit__(exc_type, exc, traceback)


class AdaptiveMemoryPathAcquisition(_OutcomeAcquisition):
    """Slots of tiers, and how the work under them ended."""

    __slots__ = OUTCOME_SLOTS


class ObservedAdaptiveMemoryPathAcquisition(
    _OutcomeAcquisition, ObservedLargeMemoryPathAcquisition
):
    """The same, while somebody listens to events."""

    __slots__ = OUTCOME_SLOTS
