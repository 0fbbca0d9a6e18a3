"""`PathLedger.hand_over` does what `look_after` and `serve` do, whatever has happened before.

Two ledgers get the same verbs; one of them never takes the shortcut.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests._effort import TIMES
from tests.ledger.invariants import check

from slotwise._ledger import path_queue
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger


class ByTheRule(PathLedger[PathClaim]):
    __slots__ = ()

    def can_hand_over(self) -> bool:
        return False


class Shortened(PathLedger[PathClaim]):
    __slots__ = ("times",)

    def hand_over(self, node: Any, now: float) -> list[PathClaim]:
        self.times = getattr(self, "times", 0) + 1
        return super().hand_over(node, now)


def state(ledger: PathLedger[Any], now: float) -> dict[str, object]:
    nodes = [node for tier in ledger.tiers for node in tier.nodes.values()]
    return {
        "holders": {key: (claim.numbers, claim.ttl) for key, claim in ledger.holders.items()},
        "waiting": [*ledger.waiting],
        "heads": [
            (group.head.key, group.turn, group.parked_at.tier, [node.key for node in group.keeps])
            for group in ledger.groups.values()
        ],
        "nodes": [
            (node.key, node.in_use, sorted(node.free), node.waiting, node.kept, node.used)
            for node in nodes
        ],
        "parked": [sorted(group.head.key for group in node.parked_groups()) for node in nodes],
        "passing": sorted(ledger.queue.passing),
        "attention": ledger.attention,
        "deadline": ledger.next_deadline(),
        # Either may have nodes to look at where nothing will be found to do.
        "unfinished": [
            node.key
            for node in nodes
            if node.look is not None and node.has_room(1, now, node.first_parked())
        ],
    }


@pytest.mark.parametrize("looks", [1, 2, 3, 128])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_hand_over_does_what_the_rule_says(
    looks: int, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_queue, "LOOKS", looks)
    monkeypatch.setattr(path_queue, "PATIENCE", 1)  # slots are kept all the time
    taken, count = 0, 8 * TIMES
    for seed in range(count):
        dice = Random(seed)
        values = [dice.choice([1, 2, 4])]
        ledgers = Shortened(values), ByTheRule(values)
        now = 0.0
        for key in range(80):
            now += dice.choice([0.0, 0.000_001, 1.0])
            path = (dice.choice("ab"),)
            roll = dice.random()
            known = [*ledgers[1].holders, *ledgers[1].waiting]
            chosen = dice.choice(known) if known else None
            needs = None if is_plain or dice.random() < 0.8 else (1,)
            ahead = 0 if is_plain or dice.random() < 0.8 else dice.choice([2, 1_000_000, -3])
            until = dice.choice([None, None, now + 2])
            ttl = dice.choice([None, None, None, 5.0])
            granted = []
            for ledger in ledgers:
                if roll < 0.5:
                    plain = needs is None and not ahead
                    claim = (
                        PathClaim(key, None, ttl) if plain else PathClaim(key, needs, ttl, ahead)
                    )
                    grants = ledger.request(claim, path, now, wait_until=until)
                elif roll < 0.9:
                    grants = ledger.release(chosen, now)
                elif roll < 0.95:
                    grants = ledger.cancel(chosen, now)
                elif roll < 0.97 and not is_plain:
                    _, grants = ledger.resize(0, 1 + key % 3, None, now)
                elif roll < 0.98 and not is_plain:
                    ledger.pause(0, now + 1)
                    grants = []
                else:
                    grants = ledger.expire(now)[2]
                granted.append([each.key for each in grants])
            assert granted[0] == granted[1]
            assert state(ledgers[0], now) == state(ledgers[1], now)
            check(ledgers[0], now, resized=not is_plain)
        taken += getattr(ledgers[0], "times", 0)
    assert taken > 2 * count  # or nothing was compared
