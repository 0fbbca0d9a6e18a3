"""The most frequent case of a ledger with rates, in few steps: one slot of each, nobody waits.

These functions do what `PathLedger.try_request` and `PathLedger.give` do, or nothing; tests compare
them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, TypeVar

from slotwise._ledger.path_nodes import Path, PathClaim
from slotwise._ledger.paths import PathLedger

C = TypeVar("C", bound=PathClaim)

_node_of: Any = dict.get


def take_at_once(ledger: PathLedger[C], claim: C, path: Path, now: float) -> bool:
    """`try_request` for the most frequent case of a ledger with rates; False to ask that.

    Nobody waits, all nodes are known, and a number of each slot node is free; there is one. The
    claim has neither a ttl nor a deadline.
    """
    needs = claim.needs
    if needs is None or ledger.waiting or ledger.closed or ledger.paused:
        return False
    nodes: Any = ledger.fixed_nodes
    if nodes is None:
        nodes = [*map(_node_of, ledger.tables, path)]
        if None in nodes:
            return False
    at = int(now * 1_000_000 + 0.5)  # `microseconds`, inlined
    number = taken = 0
    for node in nodes:
        need, rate = needs[taken], node.rate
        if rate is None:
            if need != 1 or not node.free:
                break
            number = heappop(node.free)
        else:
            # `RateNode.has_room` and `RateNode.take`, inlined.
            level = node.level
            elapsed, node.at = at - node.at, at
            if elapsed > 0:
                level += elapsed * rate.gain
                if level > rate.full:
                    level = rate.full
            needed = need * rate.unit
            if needed > level:
                node.level = level
                break
            node.level = level - needed
        taken += 1
    else:
        claim.nodes = nodes
        claim.ranges = ()
        claim._slot_number = number
        ledger.holders[claim.key] = claim
        return True
    for node, need in zip(nodes[:taken], needs):  # noqa: B905
        if node.rate is None:
            heappush(node.free, number)
        else:
            node.level += need * node.rate.unit
    return False


def give_at_once(ledger: PathLedger[C], claim: C, path: Path, now: float) -> bool:
    """`give` for the most frequent case of a ledger with rates; False to do that instead.

    Nobody waits, and it was taken by `take_at_once`.
    """
    if claim.ranges or ledger.waiting or ledger.unbalanced or ledger.deadlines is not None:
        return False
    number = claim._slot_number
    for node in claim.nodes:
        if node.rate is None:
            node.used = now
            heappush(node.free, number)
    recent = ledger.recent
    if now < recent.turn_at:
        # `EndedClaims.remember`, inlined.
        recent.young[claim.key] = (now + recent.remembered_for, path, claim.needs)
    else:
        recent.remember(claim, now)
    return True
