"""FoundTiers: tiers that were found by their name, by code that didn't make them.

Each driver whose tiers are shared by processes finds them; the command line shows and changes them
only through this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slotwise._core.closing import Closure
from slotwise._core.path_backend import PathBackend
from slotwise._core.paths import TierSpec, TierStats


@dataclass(frozen=True, slots=True)
class FoundTiers:
    """Tiers as they were declared, how many hold and wait, and the backend to control them with.

    ``specs`` is empty where the tiers were closed before anybody used them. The function of a tier
    whose keys have their own values is not known, so ``paths`` must not be asked for a slot.
    """

    name: str
    specs: tuple[TierSpec, ...]
    paths: PathBackend
    holders: int
    waiters: int
    closure: Closure | None = None
    drained: bool = False  # a rate is not full, or can still be settled
    stats: Mapping[str, TierStats] | None = None  # by tier, if they were read together

    @property
    def is_used(self) -> bool:
        return bool(self.holders or self.waiters or self.drained)
