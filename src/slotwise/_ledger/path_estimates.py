"""Estimate when a newcomer gets a path through tiers; the rule is in `estimates`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise._ledger.estimates import slots_in, total
from slotwise._ledger.path_fullness import has_room_at_once
from slotwise._ledger.path_nodes import UNLIMITED, Group, Node, Path
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateNode


def path_in(
    ledger: PathLedger[Any],
    path: Path,
    needs: Sequence[int] | None,
    now: float,
    mean: float | None,
    in_line: int = 0,
) -> float | None:
    """Return in how many seconds a newcomer would get a path; ``mean`` is the mean hold.

    ``in_line`` are those who wait in the ledger's line.
    """
    is_free = path not in ledger.groups and not in_line
    slowest, known, paused_for = 0.0, True, 0.0
    for tier, key in zip(ledger.tiers, path, strict=True):
        node = tier.nodes.get(key)
        if tier.pauses:
            is_free = is_free and tier.paused_until(key) <= now
            paused_for = max(paused_for, tier.paused_until(key) - now)
        if node is None:
            continue
        need = 1 if needs is None else needs[tier.index]
        is_free = is_free and has_room_at_once(node, need, now)
        wanted = _ahead(node) + in_line + node.kept + need
        if isinstance(node, RateNode):
            seconds: float | None = _units_in(node, wanted, now)
        else:
            seconds = slots_in(node.in_use + wanted - node.value, node.value, mean)
        known = known and seconds is not None
        slowest = max(slowest, seconds or 0.0)
    if is_free:
        return 0.0
    if paused_for > 0:
        return max(slowest, paused_for)
    return slowest if known else None


def _ahead(node: Any) -> float:
    """Return what the waiters parked at a node need."""
    groups = node.parked_groups()
    return total((_wanted(group, node) for group in groups), len(groups))


def _wanted(group: Group, node: Any) -> float:
    """Return what a group needs of a node, as far as its narrower tiers let it come there."""
    at_once = UNLIMITED
    for narrower in group.nodes[: node.tier]:
        if isinstance(narrower, Node):
            at_once = min(at_once, narrower.value)
    needs = (1 if each.needs is None else each.needs[node.tier] for each in group.waiters.values())
    waiting = len(group.waiters)
    return total(needs, waiting) * min(waiting, at_once) / waiting


def _units_in(node: RateNode, units: float, now: float) -> float:
    """Return in how many seconds there are ``units`` in a bucket."""
    missing = units * node.rate.unit - node.level_at(now)
    return max(missing, 0.0) / node.rate.gain / 1_000_000
