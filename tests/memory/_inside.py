"""What tests look at inside a limit in memory; everything else goes through its public face."""

from __future__ import annotations

from typing import Any

from slotwise._ledger.paths import PathLedger
from slotwise.memory._tracker import Tracker


def tracker_of(limit: Any) -> Tracker:
    """What all objects of a semaphore, of tiers, of a rate, or of their backend share."""
    while not hasattr(limit, "tracker"):
        limit = limit._backend if hasattr(limit, "_backend") else limit._tiers
    tracker: Tracker = limit.tracker
    return tracker


def ledger_of(limit: Any) -> PathLedger[Any]:
    """The ledger that decides who gets something of it."""
    return tracker_of(limit).ledger
