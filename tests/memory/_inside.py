"""What tests look at inside a limit in memory; everything else goes through its public face."""

from __future__ import annotations

from typing import Any

from slotwise.memory._path_tracker import PathTracker
from slotwise.memory._tracker import Tracker


def tracker_of(semaphore: Any) -> Tracker:
    """What all instances of a semaphore share."""
    tracker: Tracker = semaphore._tracker
    return tracker


def path_tracker_of(tiers: Any) -> PathTracker:
    """The same of tiers, of a rate, or of their backend."""
    while not hasattr(tiers, "_tracker"):
        tiers = tiers._backend if hasattr(tiers, "_backend") else tiers._tiers
    tracker: PathTracker = tiers._tracker
    return tracker
