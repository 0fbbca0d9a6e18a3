"""The most frequent case of a ledger with rates, in few steps: nobody waits, one slot of each.

They do what `PathLedger.try_request` and `PathLedger.give` do, or nothing; the tests compare them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TypeVar

from slotwise._ledger.path_nodes import Path, PathClaim
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.times import microseconds

C = TypeVar("C", bound=PathClaim)


def take_at_once(ledger: PathLedger[C], claim: C, path: Path, now: float) -> bool:
    """`try_request` for the most frequent case of a ledger with rates; False to ask that.

    Nobody waits, all nodes are known, and a number of each slot node is free.
    """
    needs = claim.needs
    if ledger.waiting or ledger.closed or needs is None:
        return False
    at = microseconds(now)
    nodes = []
    for table, key, need in zip(ledger.tables, path, needs):  # noqa: B905 - it costs
        node = table.get(key)
        if node is None:
            return False
        rate = node.rate
        if rate is None:
            if need != 1 or not node.free:
                return False
        else:
            elapsed, node.at = at - node.at, at
            if elapsed > 0:
                level = node.level + elapsed * rate.gain
                node.level = min(rate.full, level)
            if need * rate.unit > node.level:
                return False
        nodes.append(node)
    number = 0
    for node, need in zip(nodes, needs):  # noqa: B905
        rate = node.rate
        if rate is None:
            number = heappop(node.free)
        else:
            node.level -= need * rate.unit
    claim.nodes = nodes
    claim.ranges = (range(number, number + 1),)
    ledger.queue.last_ticket += 1
    ledger._file(claim, number, now)
    return True


def give_at_once(ledger: PathLedger[C], claim: C, now: float) -> bool:
    """`give` for the most frequent case of a ledger with rates; False to do that instead.

    Nobody waits, and it has one number of each slot node.
    """
    needs = claim.needs
    if ledger.waiting or ledger.unbalanced or ledger.deadlines is not None or needs is None:
        return False
    slots = [node for node in claim.nodes if node.rate is None]
    number = claim._slot_number
    if claim.ranges != (range(number, number + 1),):
        return False
    for node in slots:
        if needs[node.tier] != 1:
            return False
    for node in slots:
        node.used = now
        heappush(node.free, number)
    ledger.recent.remember(claim, now)
    return True
