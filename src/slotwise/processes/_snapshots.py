"""Convert a State to the plain values of a snapshot, or back.

A restored state decides everything as the written one does. Full buckets are left out: an unknown
one is full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slotwise._core.closing import Closure
from slotwise._ledger.estimates import HoldTimes
from slotwise._ledger.paths_restore import (
    parked_groups,
    restore_holders,
    restore_waiters,
    turns_of,
)
from slotwise._ledger.rate_nodes import RateTier
from slotwise._ledger.tier_nodes import CHANGES_OF_A_KEY
from slotwise._ledger.times import microseconds
from slotwise.processes._adaptations import read_adaptation, write_adaptation
from slotwise.processes._claims import ProcessClaim
from slotwise.processes._values import read_value, write_specs, write_value

if TYPE_CHECKING:
    from slotwise.processes._state import State


class _KeyAlone:
    """Stands for a node of which only the key is needed."""

    __slots__ = ("key",)

    def __init__(self, key: str | None) -> None:
        self.key = key


def _write_numbers(claim: ProcessClaim) -> list[tuple[int, int]]:
    if claim.needs is None:
        return [(claim._slot_number, claim._slot_number + 1)]
    return [(numbers.start, numbers.stop) for numbers in claim.ranges]


# ---------------------------------------------------------------------- snapshots


def take_snapshot(state: State) -> dict[str, Any]:
    """Return all of a state as plain values."""
    return {
        "name": state.name,
        "tiers": write_specs(state.specs),
        "values": [
            [
                write_value(tier.value),
                [write_value(value) for value in former],
                {key: write_value(value) for key, value in tier.own_values.items()},
            ]
            for tier, former in zip(state.tiers, state.former_values, strict=True)
        ],
        # Only for keys in use whose value came with a request.
        "learnt": [
            [tier.index, key, tier.value_of(key)]
            for tier in state.tiers
            if tier.value is None
            for key in sorted(tier.nodes, key=str)
        ],
        "boot": state.boot,
        "closure": None if state.closure is None else [state.closure.reason],
        "fence": state.fence,
        "holds": [state.holds.busy, state.holds.ended],
        "ticket": state.queue.last_ticket,
        "at": state.at,
        "settle_for": state.recent.remembered_for,
        "pauses": [
            [tier.index, key, until]
            for tier in state.tiers
            for key, until in sorted(tier.pauses.items(), key=str)
        ],
        "buckets": _write_buckets(state),
        "adapted": take_adapted(state),
        "recent": [
            [*claim.arguments(), claim.granted_us, claim.token, claim.until]
            # Sorted, since processes may order those that expired at one instant differently.
            for claim in sorted(state.recent.values(), key=lambda claim: (claim.until, claim.key))
        ],
        "holders": [
            [
                *claim.arguments(),
                *(claim.granted_us, claim.token, claim.expires_at, _write_numbers(claim)),
            ]
            for claim in state.holders.values()
        ],
        "waiting": [
            [*claim.arguments(), claim.ticket, state.deadline_of(claim.key)]
            for claim in state.waiting.values()
        ],
        "parked": parked_groups(state),
        "turns": turns_of(state),
    }


def fill_from_snapshot(state: State, snapshot: dict[str, Any]) -> None:
    """Fill a new state with what a snapshot says."""
    state.fence = snapshot["fence"]
    state.holds = HoldTimes(*snapshot["holds"])
    state.queue.last_ticket = snapshot["ticket"]
    state.at = snapshot["at"]
    state.recent.remembered_for = snapshot["settle_for"]
    for tier, former, (value, known, own) in zip(
        state.tiers, state.former_values, snapshot["values"], strict=True
    ):
        tier.value = read_value(value)
        tier.own_values = {key: read_value(each) for key, each in own.items()}
        former += map(read_value, known)
    for index, key, value in snapshot["learnt"]:
        state.learn(index, key, value)
    for index, key, until in snapshot["pauses"]:
        state.pause(index, until, key)
    for *fields, granted_us, token, until in snapshot["recent"]:
        claim = ProcessClaim(*fields)
        claim.granted_us, claim.token, claim.until = granted_us, token, until
        claim._slot_number = 0
        claim.nodes = [_KeyAlone(key) for key in claim.path]
        state.recent[claim.key] = claim
    put_adapted_back(state, snapshot["adapted"])
    held = []
    for *fields, granted_us, token, expires_at, numbers in snapshot["holders"]:
        claim = ProcessClaim(*fields)
        claim.granted_us, claim.token, claim.expires_at = granted_us, token, expires_at
        held.append((claim, claim.path, [range(*each) for each in numbers], expires_at))
        state._count(claim)
    restore_holders(state, held)
    _read_buckets(state, snapshot["buckets"])
    if snapshot["closure"] is not None:
        state.closure = Closure(*snapshot["closure"])
        state.close()
    waiting = []
    for *fields, ticket, wait_until in snapshot["waiting"]:
        claim = ProcessClaim(*fields)
        waiting.append((claim, claim.path, ticket, wait_until))
        state._count(claim)
    restore_waiters(state, waiting, snapshot["parked"], snapshot["turns"])


# ---------------------------------------------------------------- adaptive values


def take_adapted(state: State) -> list[list[Any]]:
    """Return what adaptive tiers have learnt, in the order in which their keys were last used."""
    return [
        [
            *(tier.index, tier.is_frozen, tier.frozen_at, sorted(map(str, tier.frozen_keys))),
            [[key, *(write_adaptation(node.adaptation) or ())] for key, node in tier.nodes.items()],
        ]
        for tier in state.tiers
        if tier.adaptive is not None
    ]


def put_adapted_back(state: State, adapted: Sequence[Sequence[Any]]) -> None:
    """Restore the nodes of adaptive tiers; there are none yet."""
    for index, is_frozen, frozen_at, frozen_keys, nodes in adapted:
        tier = state.tiers[index]
        for key, *written in nodes:
            node = tier.make(key, 0.0)
            known = read_adaptation(written)
            if key is not None:
                known.keep_changes(CHANGES_OF_A_KEY)
            node.adaptation, node.value = known, known.limit
        tier.is_frozen, tier.frozen_at, tier.frozen_keys = is_frozen, frozen_at, {*frozen_keys}


# ------------------------------------------------------------------------- rates


def _write_buckets(state: State) -> list[list[Any]]:
    """Return those that were not full at the time of the last record."""
    return [
        [tier.index, key, node.level, node.at]
        for tier in state.tiers
        if isinstance(tier, RateTier)
        for key, node in sorted(tier.nodes.items(), key=lambda item: str(item[0]))
        if node.used > state.at
    ]


def _read_buckets(state: State, buckets: Sequence[Sequence[Any]]) -> None:
    for index, key, level, at in buckets:
        tier = state.tiers[index]
        node = tier.nodes.get(key) or tier.make(key, 0.0)
        node.level, node.at = level, at


def keep_rates(state: State) -> Callable[[float], None]:
    """Return a function that restores the rates as they are now, in a state that forgot everything.

    It is called with the time, by a clock that may have started anew.
    """
    buckets = [
        [index, key, state.tiers[index].nodes[key].level_at(state.at)]
        for index, key, *_ in _write_buckets(state)
    ]
    recent, at, settle_for = [*state.recent.values()], state.at, state.recent.remembered_for

    def put_back(now: float) -> None:
        _read_buckets(state, [[*bucket, microseconds(now)] for bucket in buckets])
        state.recent.remembered_for = settle_for
        for claim in recent:
            claim.until += now - at
            state.recent[claim.key] = claim

    return put_back
