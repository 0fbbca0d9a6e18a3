"""Plain values of a PathLedger: taken for a snapshot, restored from one.

A restored ledger decides everything as the saved one would. What is left out makes no
difference to that: which slot numbers circulate, and idle nodes. The contents of buckets have to
be restored after the holders and before the waiters.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

from slotwise._ledger.path_nodes import BasePathClaim, Node, Path
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.ranges import Ranges

C = TypeVar("C", bound=BasePathClaim)

# For each group: the key of its head, the tier where it is parked, and those that keep for it.
ParkedGroups = list[tuple[Hashable, int, list[int]]]


def parked_groups(ledger: PathLedger[C]) -> ParkedGroups:
    """Where those who wait are parked, the oldest head first; nothing may be unfinished."""
    assert not ledger.unfinished
    found: ParkedGroups = []
    for group in sorted(ledger.groups.values(), key=lambda group: group.ticket):
        assert group.parked_at is not None
        head = group.head.key
        found.append((head, group.parked_at.tier, [node.tier for node in group.keeps]))
    return found


def turns_of(ledger: PathLedger[C]) -> dict[str, Any]:
    """What the turns of those who wait depend on, as plain values."""
    fair = ledger.queue.fair
    return {
        "passing": sorted(ledger.queue.passing),
        "time": 0.0 if fair is None else fair.time,
        "tags": {} if fair is None else dict(fair.tags),
        "shares": {}
        if fair is None
        else {key: (share.tag, share.weight) for key, share in fair.shares.items()},
    }


def restore_turns(ledger: PathLedger[C], turns: dict[str, Any]) -> None:
    """Set what `turns_of` has returned, before anybody is parked."""
    ledger.queue.passing[:] = turns["passing"]
    if ledger.queue.fair is not None:
        ledger.queue.fair.restore(turns["time"], turns["tags"], turns["shares"])


def restore_holders(
    ledger: PathLedger[C], held: Iterable[tuple[C, Path, Sequence[range], float | None]]
) -> None:
    """Fill a new ledger: claims, their paths, the ranges of their numbers, and their deadlines."""
    numbers: dict[Node, Ranges] = {}
    for claim, path, ranges, deadline in held:
        claim.nodes = ledger._nodes(path, 0.0)
        claim._slot_number = ranges[0].start
        if claim.needs is not None:
            claim.ranges = ranges
        ledger.holders[claim.key] = claim
        if deadline is not None:
            ledger.timed().set(claim.key, deadline)
        for node in claim.nodes:
            if not isinstance(node, Node):
                continue
            if node.is_numbered:
                taken = numbers.setdefault(node, Ranges())
                for each in ranges:
                    taken.add(each)
            else:
                node.circulating += 1 if claim.needs is None else claim.needs[node.tier]
    for node, taken in numbers.items():
        node.restore_numbers(taken)
    for tier in ledger.tiers:
        for node in tier.nodes.values():
            if isinstance(node, Node) and not node.is_balanced:
                ledger.unbalanced.add(node)
                ledger.attention = True


def restore_waiters(
    ledger: PathLedger[C],
    waiters: Iterable[tuple[C, Path, int, float | None]],
    parked: Iterable[tuple[Hashable, int, Sequence[int]]],
    turns: dict[str, Any],
) -> None:
    """Add those who wait: claims, their paths, tickets and deadlines, in the order of arrival."""
    for claim, path, ticket, deadline in waiters:
        group = ledger.groups.get(path)
        if group is None:
            group = ledger.queue.new_group(path, ledger._nodes(path, 0.0))
        ledger.queue.join(claim, group, ticket)
        if deadline is not None:
            ledger.timed().set(claim.key, deadline)
        ledger.attention = True
    restore_turns(ledger, turns)
    at = []
    for head, tier, keeps in parked:
        group = ledger.waiting[head].group
        at.append((group, group.nodes[tier]))
        for index in keeps:
            node = group.nodes[index]
            node.kept_for, node.kept = group, group.need(node)
            group.keeps.append(node)
    # Only now: when a bucket has enough for a head depends on what it keeps for others.
    for group, node in at:
        ledger.queue.park(group, node)
