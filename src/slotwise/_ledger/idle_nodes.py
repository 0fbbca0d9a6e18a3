"""Forget the nodes of a ledger that nobody uses; nothing depends on them."""

from __future__ import annotations

from typing import Any

from slotwise._ledger.deadlines import NEVER
from slotwise._ledger.path_nodes import UNLIMITED
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateTier

# How many more nodes than have to be forgotten are examined in one call.
_MORE = 64


def forget_idle(
    ledger: PathLedger[Any],
    tier: int,
    now: float,
    older_than: float,
    keep_at_most: int | None = None,
    looks: int = UNLIMITED,
) -> tuple[int, bool]:
    """Forget nodes idle for that long, or beyond ``keep_at_most``; see `TierNodes.forget`."""
    which = ledger.tiers[tier]
    too_many = 0
    if keep_at_most is not None:
        if isinstance(which, RateTier):
            busy = sum(node.used > now or node.waiting > 0 for node in which.nodes.values())
        else:
            claims = (*ledger.holders.values(), *ledger.waiting.values())
            busy = len({claim.nodes[tier] for claim in claims})
        too_many = len(which.nodes) - busy - keep_at_most
    return which.forget(now, now - older_than, too_many, looks)


def trim(ledger: PathLedger[Any], now: float) -> None:
    """Forget the longest idle nodes of tiers that remember too many."""
    for tier in ledger.tiers:
        # Not counted, but no more than this can be in use.
        busy = len(ledger.holders) + len(ledger.waiting)
        too_many = len(tier.nodes) - busy - tier.max_idle
        if too_many > 0:
            tier.forget(now, -NEVER, too_many, 2 * too_many + _MORE)
