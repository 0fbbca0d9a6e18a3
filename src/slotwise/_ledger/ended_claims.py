"""EndedClaims: what those who have ended lately took of rates, while that can be corrected."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from slotwise._core.rates import Rate
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.shrinking import shrink

# For how many seconds at least; or for a whole `per`, if that is longer.
_AT_LEAST = 60.0


class EndedClaim:
    """What one that has ended took, until when that can be corrected.

    Not its claim: a driver's claim knows the objects of its name, which may be gone by then.
    """

    __slots__ = ("needs", "nodes", "until")

    def __init__(self, until: float, nodes: Sequence[Any], needs: tuple[int, ...] | None) -> None:
        self.until = until
        self.nodes = nodes
        self.needs = needs


class EndedClaims(OrderedDict[Hashable, Any]):
    """Each an `EndedClaim`, or what has the same; by their keys, the next to be forgotten first."""

    def __init__(self, rates: Iterable[Rate]) -> None:
        super().__init__()
        self.remembered_for = _AT_LEAST  # in seconds
        for rate in rates:
            self.remember_longer(rate)

    def remember_longer(self, rate: Rate) -> None:
        """Remember those that come from now on long enough for another rate too."""
        self.remembered_for = max(self.remembered_for, rate.per)

    def remember(self, claim: PathClaim, now: float) -> None:
        self.forget_old(now)
        self[claim.key] = EndedClaim(now + self.remembered_for, claim.nodes, claim.needs)

    def forget_old(self, now: float) -> None:
        forgotten = 0
        while self and next(iter(self.values())).until <= now:
            self.popitem(last=False)
            forgotten += 1
        if forgotten:
            shrink(self)
