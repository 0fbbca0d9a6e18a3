"""What the adaptive limits of this process share: the path from the end of a hold to its report.

A block ends with an outcome, which may move a value; hooks are told of that. How values move is in
`slotwise._ledger.adaptation`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from slotwise._core import events
from slotwise._core.adaptive import Outcome
from slotwise._core.outcomes import Outcomes
from slotwise._ledger.adaptation import Adaptation
from slotwise._ledger.times import microseconds
from slotwise.memory._base_tracker import BaseTracker, C


class AdaptingTracker(BaseTracker[C]):
    """A tracker whose values may move; its subclasses have the slots."""

    __slots__ = ()

    is_expiring: bool  # whether holds end by their ttl
    # Changes that the hooks don't know yet: the arguments of the call that tells them.
    unreported: deque[tuple[Any, ...]]

    def expire(self, now: float) -> tuple[list[C], list[C], list[C]]:
        self.is_expiring = True  # type: ignore[misc] # a slot of the subclasses
        try:
            return super().expire(now)
        finally:
            self.is_expiring = False  # type: ignore[misc]

    def _ending_of(self, claim: C, now: float) -> tuple[int, Outcome, int]:
        outcomes: Outcomes | None = claim._outcomes
        if outcomes is None:
            return 0, "ignored", 0
        outcome: Outcome = "dropped" if self.is_expiring else outcomes.outcome
        held_us = max(microseconds(now) - microseconds(claim.since), 0)
        return held_us, outcome, microseconds(outcomes.retry_after)

    def _report_later(self, adaptation: Adaptation, *where: Any) -> None:
        """Note, *in the section*, how a value has moved; ``where`` are a tier and its key."""
        change = adaptation.take_change()
        if events.hooks and change is not None:
            self.unreported.append((*where, change.new, change.reason))

    def tell_changes(self, tell: Callable[..., None]) -> None:
        """Let ``tell`` tell the hooks how values have moved."""
        while self.unreported:
            try:
                change = self.unreported.popleft()
            except IndexError:  # another thread was faster
                break
            tell(*change)
