"""Bounded work: process a source of any length with a bounded number of items in flight.

Memory is bounded by the limit and never by the amount of work.
"""

from slotwise._bounded.memory_guard import MemoryGuard
from slotwise.pipeline._bounded import (
    BoundedMap,
    BoundedMapSync,
    bounded_map,
    bounded_map_sync,
    run_bounded,
    run_bounded_sync,
)
from slotwise.pipeline._progress import progress_bar
from slotwise.pipeline._report import MemoryLimitExceeded, Report
from slotwise.pipeline._settings import MapSettings

__all__ = [
    "BoundedMap",
    "BoundedMapSync",
    "MapSettings",
    "MemoryGuard",
    "MemoryLimitExceeded",
    "Report",
    "bounded_map",
    "bounded_map_sync",
    "progress_bar",
    "run_bounded",
    "run_bounded_sync",
]
