"""What tests look at inside a limit in memory; everything else goes through its public face."""

from __future__ import annotations

from typing import Any

from tests._inside import backend_of
from tests.ledger import invariants

from slotwise import MemorySemaphore
from slotwise._ledger.paths import PathLedger
from slotwise.memory._tracker import Tracker


def tracker_of(limit: Any) -> Tracker:
    """What all objects of a semaphore, of tiers, of a rate, or of their backend share."""
    while not hasattr(limit, "tracker"):
        limit = backend_of(limit)
    tracker: Tracker = limit.tracker
    return tracker


def ledger_of(limit: Any) -> PathLedger[Any]:
    """The ledger that decides who gets something of it."""
    return tracker_of(limit).ledger


def unnamed_numbers(semaphore: MemorySemaphore) -> list[int]:
    """The slots that its own blocks hold, last entered last."""
    return semaphore._numbers


def check(semaphore: MemorySemaphore) -> None:
    """Check its ledger, with the slots that the quick lane holds."""
    invariants.check(ledger_of(semaphore), unnamed_numbers=unnamed_numbers(semaphore))
