"""What several folders of tests look at inside a limit; everything else goes through its face."""

from __future__ import annotations

from typing import Any

from slotwise import SlotManager, Tiers


def tiers_of(limit: Any) -> Any:
    """The tiers of a rate or of a path; anything else is returned as it is."""
    return limit._tiers if hasattr(limit, "_tiers") and not isinstance(limit, Tiers) else limit


def backend_of(limit: Any) -> Any:
    """The driver's side of a semaphore, of tiers, of a path through them or of a rate."""
    limit = tiers_of(limit)
    return limit._backend if hasattr(limit, "_backend") else limit


def uploads_of(slots: SlotManager) -> Tiers:
    """The tiers that its uploads go through, of which its own figures are totals."""
    return slots._uploads


def give_number(claim: Any, number: int) -> None:
    """Grant a claim as the quick lane does, past the ledger."""
    claim._slot_number = number
