"""Read from a state: statistics, holders, waiters, and what a newcomer lacks.

Nothing here reads a journal or changes anything: `_operations.look` does, and calls this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from slotwise._core.adaptive import Change
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.messages import NAMED_HOLDERS, oldest_holders
from slotwise._core.paths import (
    SEMAPHORE_PATH,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    is_semaphore,
    keys_by_name,
    needs_by_name,
    slots_needed,
)
from slotwise._ledger.path_fullness import is_frozen, key_stats, path_stats, tier_stats
from slotwise._ledger.path_nodes import BaseNode, tie_of
from slotwise._ledger.rate_nodes import RateNode
from slotwise.processes._claims import ProcessClaim, Request
from slotwise.processes._state import Declared, State

if TYPE_CHECKING:
    from slotwise._core.stats import Claimant, SemaphoreStats


def stats_of(
    state: State, now: float, declared: tuple[TierSpec, ...], idle: IdleKeys
) -> dict[str, TierStats]:
    """Return statistics by tier; ``idle`` are keys that are remembered besides those in use."""
    if not state.is_same_shape(declared):  # somebody else's tiers
        state = State(state.name, declared, state.boot)
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
            held = [str(claim.path[tier.index]) for claim in state.holders.values()]
            idle_keys = {
                key: key_stats(tier, key, now, idle.value_of(tier.index, key))
                for key in (*idle.keys(tier.index), *held)  # of a rate, the bucket may be full
            }
            keys = {**idle_keys, **found[spec.name].keys}
            found[spec.name] = replace(found[spec.name], keys=keys)
    return found


def path_stats_of(
    state: State,
    now: float,
    declared: Declared,
    path: Path = SEMAPHORE_PATH,
    *,
    closed_here: bool = False,
) -> PathStats:
    """Return how full the tiers of one path are; ``closed_here``: by this process."""
    closure = state.closure
    if declared is not None and not state.is_same_shape(declared):  # somebody else's tiers
        state = State(state.name, declared, state.boot)
    frozen = is_semaphore(state.specs) and is_frozen(state.tiers[0], None)
    nodes = path_stats(state, path, now)
    return PathStats(nodes, closed_here, closure, "process", frozen)


def stats_of_semaphore(state: State, now: float) -> SemaphoreStats:
    return path_stats_of(state, now, None).tightest()


def changes_of(state: State, _now: float, index: int, key: str | None) -> list[Change] | None:
    """Return how the value of an adaptive tier's key has moved; nothing for an unknown key.

    None for a value that is fixed.
    """
    if index >= len(state.tiers) or state.tiers[index].adaptive is None:
        return None
    node = state.tiers[index].nodes.get(key)
    return [] if node is None else [*node.adaptation.changes]


def holders_of(state: State, _now: float) -> list[Claimant]:
    return [
        _claimant(claim, state.specs, claim.granted_us, claim._slot_number)
        for claim in state.holders.values()
    ]


def waiters_of(state: State, _now: float) -> list[Claimant]:
    waiting = [*state.waiting.values()]
    if is_semaphore(state.specs):
        waiting.sort(key=lambda claim: (claim.rank, tie_of(claim)))
    return [
        _claimant(claim, state.specs, claim.requested_us, None, claim.group.parked_at)
        for claim in waiting
    ]


def _claimant(
    claim: ProcessClaim,
    specs: Sequence[TierSpec],
    since_us: int,
    slot_number: int | None,
    lacks: BaseNode | None = None,
) -> Claimant:
    """Return a holder or waiter as callers see it."""
    from datetime import UTC, datetime  # not needed to acquire

    from slotwise._core.stats import Claimant

    return Claimant(
        claim.key,
        slots_needed(specs, claim.needs),
        datetime.fromtimestamp(since_us / 1e6, UTC),
        os.uname().nodename,
        claim.pid,
        claim.label,
        slot_number,
        ttl=claim.ttl,
        keys=keys_by_name(specs, claim.path),
        needs=needs_by_name(specs, claim.needs),
        lacks=None if lacks is None else specs[lacks.tier].name or None,
    )


# ------------------------------------------------------- what a newcomer is told


def fullness(state: State, wanted: Request, now: float) -> str:
    """Return which tier has no room, and why, for a caller that got no slot."""
    return state.fullness(wanted.path, wanted.needs, now, partial(oldest_holders_of, state))


def oldest_holders_of(state: State) -> str:
    host = os.uname().nodename
    return oldest_holders(
        (host, claim.pid, claim.label, max(time.time() - claim.granted_us / 1e6, 0.0))
        for claim in islice(state.holders.values(), NAMED_HOLDERS)
    )
