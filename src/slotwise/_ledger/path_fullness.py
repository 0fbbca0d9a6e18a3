"""Say how full the tiers of a path are: statistics, and why a request is not granted.

Every driver that keeps a `PathLedger` tells its callers the same. Nothing here changes anything,
not even a bucket that hasn't been updated lately or a heap with stale entries: in memory, those
whose time is up are told what was full when the lock is free again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import floor
from typing import Any

from slotwise._core.adaptive import Adaptive
from slotwise._core.messages import (
    cost_above_burst,
    occupancy,
    others_waiting,
    paused,
    too_many_slots,
    what_is_left,
)
from slotwise._core.outcomes import too_many_for_adaptive
from slotwise._core.paths import KeyStats, NodeStats, TierSpec, TierStats, blame, most_of
from slotwise._core.rates import Rate
from slotwise._ledger.parked import Turn
from slotwise._ledger.path_nodes import Path
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateNode, RateTier
from slotwise._ledger.tier_nodes import TierNodes

Needs = Sequence[int]


def has_room_at_once(node: Any, need: int, now: float, turn: Turn | None = None) -> bool:
    """Whether a newcomer gets this much of a node, by rule 2 of `paths`; by default, the last."""
    if turn is None:
        if node.is_waited_for:
            return False
    elif (first := node.first_parked()) is not None and first.turn < turn:
        return False
    if node.paused_until > now:
        return False
    if isinstance(node, RateNode):
        return (need + node.kept) * node.rate.unit <= node.level_at(now)
    return bool(node.in_use + node.kept + need <= node.value)


def level_of(tier: TierNodes, key: Hashable, now: float) -> tuple[Any, ...]:
    """Return what is left of a rate, in how many seconds it is full, and it; nothing for slots."""
    if not isinstance(tier, RateTier):
        return ()
    node = tier.nodes.get(key)
    if node is None:
        return float(tier.most(key)), 0.0, tier.value_of(key)
    level, rate = node.level_at(now), node.rate
    return level / rate.unit, (rate.full - level) / rate.gain / 1_000_000, rate


def _rate_of(tier: TierNodes) -> Rate | None:
    """The rate of each key that has no other; None for slots."""
    return tier.value if isinstance(tier, RateTier) else None


def tier_stats(
    ledger: PathLedger[Any],
    specs: Sequence[TierSpec],
    nodes: Sequence[Sequence[tuple[Any, Any]]],
    waiting: int,
    now: float,
) -> dict[str, TierStats]:
    """Statistics by the names of tiers; ``nodes`` are the keys and nodes to show of each."""
    return {
        spec.name: TierStats(
            sum(node.in_use for _, node in of_tier),
            waiting,  # every path goes through every tier
            most_of(tier.value if spec.keyed else tier.value_of(None)),
            _key_stats(tier, of_tier, now) if spec.keyed else {},
            *((None, None, _rate_of(tier)) if spec.keyed else level_of(tier, None, now)),
            paused_for=paused_for(tier, None, now),
            frozen=tier.is_frozen if spec.keyed else is_frozen(tier, None),
        )
        for spec, tier, of_tier in zip(specs, ledger.tiers, nodes, strict=True)
    }


def _key_stats(
    tier: TierNodes, nodes: Sequence[tuple[str, Any]], now: float
) -> Mapping[str, KeyStats]:
    # One object for all that nobody uses: they are the most frequent.
    idle = KeyStats(0, 0, most_of(tier.value), paused_for=paused_for(tier, None, now))
    each = not isinstance(tier.value, int) or tier.adaptive is not None
    steered = {*tier.own_values, *tier.pauses, *tier.frozen_keys}
    found = {
        key: key_stats(tier, key, now)
        if node.in_use or node.waiting or key in steered or each
        else idle
        for key, node in nodes
    }
    # Also if nobody uses them.
    paused = [str(key) for key in (*tier.pauses, *tier.frozen_keys) if key is not None]
    return {**{key: key_stats(tier, key, now) for key in paused}, **found}


def key_stats(tier: TierNodes, key: str, now: float, value: Any = None) -> KeyStats:
    """How full one key is; ``value`` is that of a key whose own is not known."""
    node, known = tier.nodes.get(key), tier.value_of(key)
    return KeyStats(
        0 if node is None else node.in_use,
        0 if node is None else node.waiting,
        most_of(value if known is None else known),
        *level_of(tier, key, now),
        paused_for=paused_for(tier, key, now),
        frozen=is_frozen(tier, key),
    )


def paused_for(tier: TierNodes, key: Hashable, now: float) -> float:
    """In how many seconds the pause of a key ends; 0.0 if there is none."""
    return max(tier.paused_until(key) - now, 0.0) if tier.pauses else 0.0


def is_frozen(tier: TierNodes, key: Hashable) -> bool:
    """Whether the adaptive value of a key stays where it is."""
    if tier.adaptive is None:
        return False
    node = tier.nodes.get(key)
    if node is None:
        return tier.is_frozen or key in tier.frozen_keys
    frozen: bool = node.adaptation.frozen
    return frozen


def path_stats(ledger: PathLedger[Any], path: Path, now: float) -> tuple[NodeStats, ...]:
    """How full the tiers of one path are."""
    return tuple(_node_stats(tier, key, now) for tier, key in zip(ledger.tiers, path, strict=True))


def _node_stats(tier: TierNodes, key: Hashable, now: float) -> NodeStats:
    node, value = tier.nodes.get(key), most_of(tier.value_of(key))
    pause = paused_for(tier, key, now)
    if node is None:
        return NodeStats(0, 0, value, paused_for=pause)
    taken = node.in_use
    if isinstance(node, RateNode):
        taken = value - min(floor(level_of(tier, key, now)[0]), value)
    kept = max(value - taken, 0) if node.is_waited_for else node.kept
    return NodeStats(taken, node.waiting, value, kept, pause)


def fullness(
    ledger: PathLedger[Any], specs: Sequence[TierSpec], path: Path, needs: Needs | None, now: float
) -> str:
    """Return which tier had no room, for the message to a caller that got nothing."""
    for tier, key in zip(ledger.tiers, path, strict=True):
        node = tier.nodes.get(key)
        need = 1 if needs is None else needs[tier.index]
        pause = paused_for(tier, key, now)
        if pause:
            waiting = 0 if node is None else node.waiting
            return blame(specs, tier.index, key, f"{paused(pause)}, {others_waiting(waiting)}")
        if node is None or has_room_at_once(node, need, now):
            continue
        if isinstance(node, RateNode):
            left = node.level_at(now) / node.rate.unit
            why = what_is_left(left, node.rate, need, node.waiting)
            return blame(specs, tier.index, key, why)
        full = occupancy(value=node.value, held=node.in_use, waiting=node.waiting)
        if node.in_use + need <= node.value:
            full += ", the rest kept for an older request"
        elif need > 1:
            full += f", and {need} are needed"
        return blame(specs, tier.index, key, full)
    return "nothing of it"


def never_fits(which: str, need: int, value: Any, adaptive: Adaptive | None) -> ValueError:
    """Return the error of a request that needs more than there is; ``which`` is from `part_of`."""
    if adaptive is not None:
        return too_many_for_adaptive(which, need, adaptive)
    if isinstance(value, Rate):
        return cost_above_burst(which, need, value.burst)
    return too_many_slots(which, need, value)
