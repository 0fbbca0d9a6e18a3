"""Which state a file has, by the suffix of its name: that of a semaphore or that of tiers."""

from __future__ import annotations

from slotwise.processes._base_state import AnyState
from slotwise.processes._filenames import PRIVATE_TIERS_SUFFIX, TIERS_SUFFIX
from slotwise.processes._state import State


def kind_of(suffix: str) -> type[AnyState]:
    if suffix in (TIERS_SUFFIX, PRIVATE_TIERS_SUFFIX):
        from slotwise.processes._path_state import PathState  # most programs don't use tiers

        return PathState
    return State
