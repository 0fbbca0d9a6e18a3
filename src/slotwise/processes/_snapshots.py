"""Convert a State to the plain values of a snapshot, or back; also what records have of tiers.

A restored state decides everything as the written one does. Full buckets are left out: an unknown
one is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from slotwise._core.adaptive import Adaptive, Change
from slotwise._core.closing import Closure
from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._ledger.estimates import HoldTimes
from slotwise._ledger.paths_restore import (
    parked_groups,
    restore_holders,
    restore_waiters,
    turns_of,
)
from slotwise._ledger.rate_nodes import RateTier
from slotwise._ledger.tier_nodes import CHANGES_OF_A_KEY
from slotwise.processes._claims import ProcessClaim

if TYPE_CHECKING:
    from slotwise._ledger.adaptation import Adaptation
    from slotwise.processes._state import State

# ------------------------------------------------------------ tiers and their values


def write_value(value: int | Rate | None) -> Any:
    return [value.count, value.per, value.burst] if isinstance(value, Rate) else value


def read_value(written: Any) -> Any:
    """Return an int, None, or a Rate."""
    if not isinstance(written, list):
        return written
    count, per, burst = written
    return Rate(count, per=per, burst=burst)


def write_specs(specs: Sequence[TierSpec]) -> list[list[Any]]:
    return [
        [s.name, write_value(s.value), s.keyed, s.by_key, s.key_of, s.fair, s.rules] for s in specs
    ]


def read_specs(written: Sequence[Sequence[Any]]) -> list[TierSpec]:
    return [
        TierSpec(
            *(name, read_value(value), keyed, by_key, key_of, fair),
            adaptive=Adaptive.read(rules) if rules else None,
            rules=rules,
        )
        for name, value, keyed, by_key, key_of, fair, rules in written
    ]


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
        "buckets": [
            [tier.index, key, node.level, node.at]
            for tier in state.tiers
            if isinstance(tier, RateTier)
            for key, node in sorted(tier.nodes.items(), key=lambda item: str(item[0]))
            if node.used > state.at  # at the time of the last record
        ],
        "adapted": [
            [
                *(tier.index, tier.is_frozen, tier.frozen_at, sorted(map(str, tier.frozen_keys))),
                # In the order in which they were last used.
                [[key, *_written(node.adaptation)] for key, node in tier.nodes.items()],
            ]
            for tier in state.tiers
            if tier.adaptive is not None
        ],
        "recent": [
            [*claim.arguments(), claim.granted_us, claim.token, claim.until]
            # Sorted, since processes may order those that expired at one instant differently.
            for claim in sorted(state.recent.values(), key=lambda claim: (claim.until, claim.key))
        ],
        "holders": [
            [
                *claim.arguments(),
                *(claim.granted_us, claim.token, claim.expires_at),
                [
                    (numbers.start, numbers.stop)
                    for numbers in claim.ranges
                    or [range(claim._slot_number, claim._slot_number + 1)]
                ],
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


def fill(state: State, snapshot: dict[str, Any]) -> None:
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
        claim.nodes = [SimpleNamespace(key=key) for key in claim.path]
        state.recent[claim.key] = claim
    for index, is_frozen, frozen_at, frozen_keys, nodes in snapshot["adapted"]:
        tier = state.tiers[index]
        for key, rules, dump, changes in nodes:
            node = tier.make(key, 0.0)
            node.adaptation = _adaptation(key, rules, dump, changes)
            node.value = node.adaptation.limit
        tier.is_frozen, tier.frozen_at, tier.frozen_keys = is_frozen, frozen_at, {*frozen_keys}
    held = []
    for *fields, granted_us, token, expires_at, numbers in snapshot["holders"]:
        claim = ProcessClaim(*fields)
        claim.granted_us, claim.token, claim.expires_at = granted_us, token, expires_at
        held.append((claim, claim.path, [range(*each) for each in numbers], expires_at))
        state._count(claim)
    restore_holders(state, held)
    for index, key, level, at in snapshot["buckets"]:
        tier = state.tiers[index]
        node = tier.nodes.get(key) or tier.make(key, 0.0)
        node.level, node.at = level, at
    if snapshot["closure"] is not None:
        state.closure = Closure(*snapshot["closure"])
        state.close()
    waiting = []
    for *fields, ticket, wait_until in snapshot["waiting"]:
        claim = ProcessClaim(*fields)
        waiting.append((claim, claim.path, ticket, wait_until))
        state._count(claim)
    restore_waiters(state, waiting, snapshot["parked"], snapshot["turns"])


def _written(known: Adaptation) -> list[Any]:
    changes = [[each.at, each.old, each.new, each.reason] for each in known.changes]
    return [known.options.written, known.dump(), changes]


def _adaptation(key: str | None, rules: str, dump: str, changes: Sequence[Any]) -> Adaptation:
    from slotwise._ledger.adaptation import adaptation  # most values are fixed

    known = adaptation(Adaptive.read(rules), 0)
    known.restore(dump)
    known.changes += [Change(*change) for change in changes]
    known.take_change()  # whoever made it has reported it
    if key is not None:
        known.keep_changes(CHANGES_OF_A_KEY)
    return known
