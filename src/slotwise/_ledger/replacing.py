"""Choose whose slots a newcomer takes over that replaces holders instead of waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

C = TypeVar("C", bound=Any)  # a claim with `slots`

# A head start, in microseconds, that is longer than any that a caller may have.
FIRST = 2**60


def longest_holders(holders: Iterable[C], missing: int) -> list[C]:
    """Return the first of ``holders`` that have ``missing`` slots; nobody, if all have fewer."""
    chosen = []
    for each in holders:
        if missing <= 0:
            break
        chosen.append(each)
        missing -= each.slots
    return [] if missing > 0 else chosen
