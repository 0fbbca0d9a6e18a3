"""Read what the state of tiers says: statistics, and who holds and waits."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import cast

from slotwise._core.idle_keys import IdleKeys
from slotwise._core.paths import (
    KeyStats,
    NodeStats,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    keys_by_name,
    needs_by_name,
    slots_needed,
)
from slotwise._core.results import Claimant
from slotwise._ledger.path_nodes import BaseNode
from slotwise.processes._path_state import PathState, ProcessPathClaim


def stats_of(
    state: PathState, declared: tuple[TierSpec, ...], idle: IdleKeys
) -> dict[str, TierStats]:
    """Statistics by tier; ``idle`` are keys that are remembered beside those in use."""
    if not state.is_same_shape(declared):  # somebody else's tiers
        state = PathState(state.name, declared, state.boot)
    found = {}
    for spec, tier in zip(declared, state.tiers, strict=True):
        keys: dict[str, KeyStats] = {}
        if spec.keyed:
            for key in idle.keys(tier.index):
                value = tier.value_of(key)
                value = idle.value_of(tier.index, key) if value is None else value
                keys[key] = KeyStats(0, 0, value or 0)
            for each, node in tier.nodes.items():
                keys[cast("str", each)] = KeyStats(
                    node.in_use, node.waiting, tier.value_of(each) or 0
                )
        found[spec.name] = TierStats(
            sum(node.in_use for node in tier.nodes.values()),
            len(state.waiting),  # every path goes through every tier
            tier.value or 0,
            MappingProxyType(keys),
        )
    return found


def path_stats_of(
    state: PathState, declared: tuple[TierSpec, ...], path: Path, *, closed_here: bool
) -> PathStats:
    """How full the tiers of one path are; ``closed_here``: by this process, for itself."""
    closure = state.closure
    if not state.is_same_shape(declared):
        state = PathState(state.name, declared, state.boot)
    found = []
    for tier, key in zip(state.tiers, path, strict=True):
        node, value = tier.nodes.get(key), tier.value_of(key) or 0
        if node is None:
            found.append(NodeStats(0, 0, value))
        else:
            is_waited_for = node.first_parked() is not None
            kept = max(value - node.in_use, 0) if is_waited_for else node.kept
            found.append(NodeStats(node.in_use, node.waiting, value, kept))
    return PathStats(tuple(found), closed_here, closure)


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
    return Claimant(
        claim.acquisition_id,
        slots_needed(specs, claim.needs),
        datetime.fromtimestamp(since_us / 1e6, UTC),
        socket.gethostname(),
        claim.pid,
        claim.label,
        slot_number,
        keys=keys_by_name(specs, claim.path),
        needs=needs_by_name(specs, claim.needs),
        lacks=None if lacks is None else specs[lacks.tier].name,
    )
