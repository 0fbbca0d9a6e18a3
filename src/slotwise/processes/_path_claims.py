"""PathRequest and ProcessPathClaim: what is wanted of tiers, or held, in any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slotwise._core.paths import Needs, Path
from slotwise._ledger.ended_claims import OrderedEndedClaims
from slotwise._ledger.path_nodes import PathClaim
from slotwise.processes._base_state import CLAIM_SLOTS, ProcessClaim


class PathRequest(NamedTuple):
    """What is wanted of tiers."""

    path: Path
    needs: Needs | None = None
    # The values of keys where each key has its own: (tier, value).
    values: tuple[tuple[int, int], ...] = ()
    head_start: int = 0  # in microseconds
    weight: float = 1.0  # of its key, where keys take turns


class ProcessPathClaim(ProcessClaim, PathClaim):
    """The claim of a holder or waiter of a path, or of one whose costs can still be corrected."""

    __slots__ = (*CLAIM_SLOTS, "path", "until", "values", "weight")

    path: Path
    values: Sequence[tuple[int, int]]
    weight: float
    until: float  # when its costs can't be corrected any more; once it has ended

    @property
    def wanted(self) -> PathRequest:
        # Without the values that came with it: they are known by now.
        return PathRequest(self.path, self.needs, (), self.head_start, self.weight)

    def _want(self, wanted: Any) -> None:
        path, needs, self.values, self.head_start, self.weight = wanted
        self.path = tuple(path)
        self.needs = None if needs is None else tuple(needs)


class EndedPathClaims(OrderedEndedClaims):
    """The claims themselves, since nothing here keeps an object of their name alive."""

    def remember(self, claim: Any, now: float) -> None:
        self.forget_old(now)
        claim.until = now + self.remembered_for
        self[claim.key] = claim
