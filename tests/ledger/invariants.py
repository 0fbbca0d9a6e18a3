"""What must hold for a ledger: its invariants, and the states that a claim can have.

Tests call `check` after every step; the documentation draws its diagram from `LIFE_CYCLE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import Any

from slotwise._ledger.deadlines import NEVER
from slotwise._ledger.fair import FairOrder
from slotwise._ledger.path_nodes import UNLIMITED, Group, Node, PathClaim, tie_of
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateNode

# (state, verb) -> the states a claim can be in afterwards
LIFE_CYCLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("new", "request"): ("holding", "waiting", "refused"),
    ("waiting", "request"): ("waiting", "holding"),  # of another, that finds a pause over
    ("waiting", "release"): ("waiting", "holding"),
    ("waiting", "cancel"): ("waiting", "holding", "ended"),
    ("waiting", "expire"): ("waiting", "holding", "ended"),
    ("waiting", "resize"): ("waiting", "holding", "refused"),
    ("waiting", "pause"): ("waiting",),
    ("waiting", "close"): ("refused",),
    ("holding", "release"): ("ended",),
    ("holding", "expire"): ("holding", "ended"),
    ("holding", "resize"): ("holding",),
    ("holding", "pause"): ("holding",),
    ("holding", "close"): ("holding",),
}


def check(
    ledger: PathLedger[Any],
    now: float = 0.0,
    *,
    resized: bool = False,
    unnamed_numbers: Collection[int] = (),
) -> None:
    """Raise AssertionError naming the invariant that does not hold.

    ``resized``: a limit was changed while somebody waited, which loosens P2 and P4.
    ``unnamed_numbers`` are those that a quick lane remembers by itself instead of filing a claim.
    The ledger must not share its table of holders.
    """
    holders, waiters = list(ledger.holders.values()), list(ledger.waiting.values())
    for tier in ledger.tiers:
        for key, node in tier.nodes.items():
            waiting = sum(node in claim.nodes for claim in waiters)
            assert node.waiting == waiting, f"P1: {key}"
            if isinstance(node, RateNode):
                _check_bucket(ledger, node)
                continue
            held = sum(_need(claim, node) for claim in holders if node in claim.nodes)
            held += len(unnamed_numbers)
            assert node.in_use == held, f"P1: {key}"
            assert resized or node.in_use <= node.value, f"P2: {node.in_use} held of {key}"
            if node.kept_for is not None:
                _check_keep(ledger, node, node.kept_for, resized)
    for claim in [*holders, *waiters]:
        for tier, node in zip(ledger.tiers, claim.nodes, strict=True):
            if isinstance(node, RateNode) and claim in holders:
                continue  # a full bucket is forgotten, whoever took something of it
            assert tier.nodes.get(node.key) is node, f"P1: {node.key} was forgotten"
    for group in ledger.groups.values():
        at = group.parked_at
        assert at in group.nodes, "P3: parked elsewhere"
        first = at.first_parked()
        assert first is not None, "P3: nobody is parked there"
        is_blocked = first.turn < group.turn or not at.has_room(group.need(at), now, group)
        assert is_blocked or at.look is not None, f"P3: {group.path} fits"
        assert group in at.parked_groups(), "P3: not to be found where it is parked"
        tickets = [claim.ticket for claim in group.waiters.values()]
        assert tickets == sorted(tickets), "P5: out of order"
        first_claim = min(group.waiters.values(), key=lambda claim: (claim.rank, tie_of(claim)))
        assert group.head is first_claim, "P5: not its head"
        assert group.ticket == first_claim.ticket, "P5: not its head's ticket"
    if ledger.queue.fair is not None:
        _check_shares(ledger.queue.fair, waiters)
    nodes = [node for tier in ledger.tiers for node in tier.nodes.values()]
    unbalanced = {node for node in nodes if isinstance(node, Node) and not node.is_balanced}
    assert unbalanced <= ledger.unbalanced, "P6: nobody balances it"
    assert not (ledger.closed and waiters), "P7: somebody waits on a closed ledger"
    for tier in ledger.tiers:
        for key, node in tier.nodes.items():
            assert node.paused_until == tier.paused_until(key), f"P10: {key}"
    assert ledger.paused == any(tier.pauses for tier in ledger.tiers), "P10"
    if ledger.line:
        assert not ledger.node().has_room(1, now), "P11: there is a line, and a slot is free"
        assert not ledger.closed, "P7: somebody waits on a closed ledger"
    careful = (
        bool(waiters)
        or bool(unbalanced)
        or ledger.closed
        or ledger.paused
        or not ledger.has_quick_lane
    )
    assert ledger.attention == careful, f"P6: attention is {ledger.attention}"
    assert sum(len(group.waiters) for group in ledger.groups.values()) == len(waiters)
    widest = [] if ledger.queue.widest is None else [ledger.tiers[ledger.queue.widest]]
    for node in (node for tier in widest for node in tier.nodes.values()):
        claims = [claim for claim in holders if node in claim.nodes]
        _check_numbers(node, claims, unnamed_numbers)


def _need(claim: PathClaim, node: Node) -> int:
    return 1 if claim.needs is None else claim.needs[node.tier]


def _check_shares(fair: FairOrder, waiters: list[PathClaim]) -> None:
    counts = Counter(claim.group.path[fair.tier] for claim in waiters)
    assert {key: share.waiting for key, share in fair.shares.items()} == counts, "F1"
    for share in fair.shares.values():
        groups = {claim.group for claim in waiters if claim.group.share is share}
        parked_at = [group.parked_at for group in groups]
        wider = Counter(node for node in parked_at if node is not None and node.tier != fair.tier)
        assert share.nodes == wider, "F1: not where its groups are parked"
    assert not fair.tags.keys() & fair.shares.keys(), "F2: a tag of a key that waits"
    assert all(tag > fair.time for tag in fair.tags.values()), "F2: an old tag"
    assert waiters or (fair.time == 0 and not fair.tags), "F3: something is remembered"


def _check_bucket(ledger: PathLedger[Any], node: RateNode) -> None:
    assert node.level <= node.rate.full, "P9: more than full"
    first = node.first_parked()
    if first is not None and node.look is None and node.refill_at == NEVER:
        lacking = node.ready_at(first.need(node), first)
        assert lacking == NEVER, f"P9: nobody looks at {node.key} when it is refilled"
    assert ledger.refills is not None


def _check_numbers(node: Node, holders: list[Any], unnamed_numbers: Collection[int]) -> None:
    numbers = [number for claim in holders for number in claim.numbers]
    numbers += [*unnamed_numbers, *node.free, *chain(*node.reserve)]
    assert len({*numbers}) == len(numbers), f"P8: a number of {node.key} stands twice"
    assert all(1 <= number <= node.top for number in numbers), f"P8: top is {node.top}"
    if node.circulating:  # else it may have retired
        assert len(numbers) == node.top, f"P8: of 1..{node.top} only {sorted(numbers)} are left"
    for claim in holders:
        assert len(claim.numbers) == _need(claim, node), "P8: not a number for each slot"


def _check_keep(ledger: PathLedger[Any], node: Node, kept_for: Group, resized: bool) -> None:
    assert ledger.groups.get(kept_for.path) is kept_for, "P4: kept for nobody"
    assert node in kept_for.keeps, "P4: a keep its group knows nothing of"
    assert node.kept == kept_for.need(node), "P4: not as many as it needs"
    assert ledger.queue.is_overdue(kept_for.ticket), "P4: kept for one not overdue"
    if resized:
        return
    at = kept_for.parked_at
    assert at is not None
    index = kept_for.nodes.index(node)
    assert index < kept_for.nodes.index(at), "P4: something narrower is lacking"
    for narrower in kept_for.nodes[:index]:
        kept = narrower.kept_for is kept_for or narrower.value == UNLIMITED
        assert kept, "P4: a narrower one is not kept"
