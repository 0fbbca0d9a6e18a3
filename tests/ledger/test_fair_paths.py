"""Fair order: how much each key gets, and when, by the bounds above the path ledger."""

from __future__ import annotations

from slotwise._core.rates import Rate
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger


class Fair:
    """A ledger of a tier with keys and one without; work is granted one request at a time."""

    def __init__(self, *values, fair_cost=None, weights=None):
        self.ledger = PathLedger(values, fair_by=0, fair_cost=fair_cost)
        self.weights = weights or {}
        self.numbers = 0
        self.keys = {}

    def ask(self, key, needs=None, head_start=0):
        self.numbers += 1
        claim = PathClaim(self.numbers, needs, None, head_start)
        self.keys[self.numbers] = key
        path = (key, *[None] * (len(self.ledger.tiers) - 1))
        self.ledger.request(claim, path, weight=self.weights.get(key, 1.0))
        return claim.key

    def release_one(self):
        """Whom that lets in."""
        granted = self.ledger.release(next(iter(self.ledger.holders)))
        return [self.keys[claim.key] for claim in granted]

    def grants(self, count):
        """The keys of the next so many grants."""
        found = []
        while len(found) < count:
            found += self.release_one()
        return found


def test_a_key_that_was_away_has_saved_up_nothing():
    fair = Fair(0, 1)
    for _ in range(200):
        fair.ask("a")
    fair.grants(100)
    for _ in range(50):
        fair.ask("b")
    served = fair.grants(20)
    assert abs(served.count("a") - served.count("b")) <= 1


def test_one_that_asks_again_at_once_gets_no_more_than_its_share():
    fair = Fair(0, 1)
    for _ in range(100):
        fair.ask("a")
    served = []
    for _ in range(60):
        if "b" not in [fair.keys[key] for key in fair.ledger.waiting]:
            fair.ask("b")
        served += fair.release_one()
    assert abs(served.count("a") - served.count("b")) <= 2


def test_the_order_is_forgotten_once_nobody_waits():
    fair = Fair(0, 2)
    for key in "aabbc":
        fair.ask(key)
    order = fair.ledger.queue.fair
    assert order is not None
    fair.grants(3)
    assert (order.time, order.tags, order.shares) == (0.0, {}, {})
    assert len(fair.ledger.holders) == 2


def test_keys_that_come_and_go_leave_nothing_behind():
    fair = Fair(1, 1)
    fair.ask("held")
    fair.ask("stays")
    for n in range(2000):
        fair.ledger.cancel(fair.ask(f"k{n}"))
    [node] = fair.ledger.tiers[1].nodes.values()
    assert len(node.parked._heap) + sum(map(len, node.parked._keys.values())) < 200
    assert fair.ledger.queue.fair.shares.keys() == {"stays"}


def test_a_head_whose_turn_comes_by_a_grant_elsewhere_waits_for_its_own_time():
    """At a rate, the first one's time counts: a grant of its key may make another the first."""
    ledger = PathLedger([0, Rate(1, per=1, burst=3), 0], 0)
    ledger.request(PathClaim("drain", (1, 3, 1)), ("x", "n", None), 0.0)
    ledger.request(PathClaim("much", (1, 3, 1)), ("a", "n", None), 0.0)
    ledger.request(PathClaim("little", (1, 1, 1)), ("b", "n", None), 0.0)
    assert ledger.next_deadline() == 3.0
    assert ledger.request(PathClaim("else", (1, 1, 1)), ("a", "m", None), 0.0)
    assert ledger.next_deadline() == 1.0
    assert [claim.key for claim in ledger.expire(1.0)[2]] == ["little"]
