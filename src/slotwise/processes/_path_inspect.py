"""Read statistics, holders and waiters from the state of tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slotwise._core.adaptive import Change
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.paths import (
    KeyStats,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    keys_by_name,
    most_of,
    needs_by_name,
    slots_needed,
)
from slotwise._core.results import Claimant
from slotwise._ledger.path_fullness import is_frozen, level_of, path_stats, paused_for, tier_stats
from slotwise._ledger.path_nodes import BaseNode
from slotwise._ledger.rate_nodes import RateNode
from slotwise._wait import clock
from slotwise.processes._inspect import claimant_of
from slotwise.processes._path_claims import ProcessPathClaim
from slotwise.processes._path_state import PathState


def stats_of(
    state: PathState, declared: tuple[TierSpec, ...], idle: IdleKeys
) -> dict[str, TierStats]:
    """Return statistics by tier; ``idle`` are keys that are remembered besides those in use."""
    if not state.is_same_shape(declared):  # somebody else's tiers
        state = PathState(state.name, declared, state.boot)
    now = clock.now()
    nodes = [
        [
            (key, node)
            for key, node in tier.nodes.items()
            # A node that nobody uses, or a full bucket, counts as forgotten.
            if node.waiting
            or key in tier.pauses
            or (node.used > now if isinstance(node, RateNode) else node.in_use)
        ]
        for tier in state.tiers
    ]
    found = tier_stats(state, declared, nodes, len(state.waiting), now)
    for spec, tier in zip(declared, state.tiers, strict=True):
        if spec.keyed:
            idle_keys: dict[str, KeyStats] = {}
            held = [str(claim.path[tier.index]) for claim in state.holders.values()]
            for key in (*idle.keys(tier.index), *held):  # of a rate, the bucket may be full
                value = tier.value_of(key)
                value = idle.value_of(tier.index, key) if value is None else value
                level = level_of(tier, key, now)
                pause = paused_for(tier, key, now)
                idle_keys[key] = KeyStats(
                    *(0, 0, most_of(value)),
                    *level,
                    paused_for=pause,
                    frozen=is_frozen(tier, key),
                )
            keys = {**idle_keys, **found[spec.name].keys}
            found[spec.name] = replace(found[spec.name], keys=keys)
    return found


def path_stats_of(
    state: PathState, declared: tuple[TierSpec, ...], path: Path, *, closed_here: bool
) -> PathStats:
    """Return how full the tiers of one path are; ``closed_here``: by this process."""
    closure = state.closure
    if not state.is_same_shape(declared):
        state = PathState(state.name, declared, state.boot)
    return PathStats(path_stats(state, path, clock.now()), closed_here, closure)


def changes_of(state: PathState, index: int, key: str | None) -> list[Change]:
    """Return how the value of an adaptive tier's key has moved; nothing for an unknown key."""
    node = state.tiers[index].nodes.get(key) if index < len(state.tiers) else None
    return [] if node is None or node.adaptation is None else [*node.adaptation.changes]


def holders_of(state: PathState) -> list[Claimant]:
    return [
        _claimant(claim, state.specs, claim.granted_us, claim._slot_number)
        for claim in state.holders.values()
    ]


def waiters_of(state: PathState) -> list[Claimant]:
    return [
        _claimant(claim, state.specs, claim.requested_us, None, claim.group.parked_at)
        for claim in state.waiting.values()
    ]


def _claimant(
    claim: ProcessPathClaim,
    specs: Sequence[TierSpec],
    since_us: int,
    slot_number: int | None,
    lacks: BaseNode | None = None,
) -> Claimant:
    slots = slots_needed(specs, claim.needs)
    return claimant_of(
        *(claim, slots, since_us, slot_number),
        keys=keys_by_name(specs, claim.path),
        needs=needs_by_name(specs, claim.needs),
        lacks=None if lacks is None else specs[lacks.tier].name,
    )
