"""Acquisitions of memory tiers of which some are adaptive: timed, and with an outcome.

How the values move is in `slotwise._ledger.adaptation`. Nobody takes the quick lane here.
"""

from __future__ import annotations

from slotwise._core.outcomes import OUTCOME_SLOTS
from slotwise.memory._adapting import OutcomeAcquisition
from slotwise.memory._path_acquisition import LargeMemoryPathAcquisition
from slotwise.memory._path_observed import ObservedLargeMemoryPathAcquisition


class _PathOutcomeAcquisition(OutcomeAcquisition, LargeMemoryPathAcquisition):
    __slots__ = ()

    def give(self) -> bool:
        ended = super().give()
        tracker = self.paths._tracker
        if tracker.unreported:
            tracker.tell_changes(self.paths._tell_adapted)
        return ended


class AdaptiveMemoryPathAcquisition(_PathOutcomeAcquisition):
    """Slots of tiers, and how the work under them ended."""

    __slots__ = OUTCOME_SLOTS


class ObservedAdaptiveMemoryPathAcquisition(
    _PathOutcomeAcquisition, ObservedLargeMemoryPathAcquisition
):
    """The same, while somebody listens to events."""

    __slots__ = OUTCOME_SLOTS
