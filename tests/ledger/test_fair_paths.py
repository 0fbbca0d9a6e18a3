"""Fair order: how much each key gets, and when, by the bounds above the path ledger."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from tests.ledger.invariants import check

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


def test_a_key_that_asks_once_does_not_wait_behind_the_thousands_of_another():
    fair = Fair(0, 5)
    for _ in range(10_000):
        fair.ask("a")
    fair.ask("b")
    assert "b" in fair.grants(6)


def test_a_lone_key_gets_everything():
    fair = Fair(0, 3)
    for _ in range(50):
        fair.ask("a")
    assert fair.grants(47) == ["a"] * 47


@pytest.mark.parametrize("weights", [{"a": 3.0, "b": 1.0}, {"a": 0.3, "b": 0.1}])
def test_weights_hold_to_one_grant_in_any_hundred(weights):
    fair = Fair(0, 4, weights=weights)
    for _ in range(1500):
        fair.ask("a")
    for _ in range(500):
        fair.ask("b")
    served = fair.grants(1900)
    for start in range(1800):
        assert abs(served[start : start + 100].count("a") - 75) <= 1


@pytest.mark.parametrize("seed", range(12))
def test_what_backlogged_keys_get_differs_by_one_request_of_each_at_most(seed):
    """The bound, for slots or units of a rate, any weights, and others that come and go."""
    dice = random.Random(seed)
    weights = {key: dice.choice([1.0, 3.0, 0.7, 1 / 3, 10.0]) for key in "abc"}
    of_rate = seed % 2 == 1
    values = (0, Rate(10**6, per=1, burst=50), 4) if of_rate else (0, 6)
    fair = Fair(*values, fair_cost=1 if of_rate else None, weights=weights)
    largest = dict.fromkeys("abc", 0)
    costs = {}

    def ask(key):
        cost = dice.randint(1, 4)
        largest[key] = max(largest.get(key, 0), cost)
        number = fair.ask(key, (1, cost, 1) if of_rate else (1, cost))
        costs[number] = cost
        return number

    for _ in range(4):
        ask("z")
    for key in "abc" * 300:
        ask(key)
    had = Counter()
    for step in range(400):
        holder = dice.choice(list(fair.ledger.holders))
        # Enough time for the bucket to be full.
        for claim in fair.ledger.release(holder, float(step)):
            had[fair.keys[claim.key]] += costs[claim.key]
        for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
            w, v = Fraction(weights[one]), Fraction(weights[other])
            apart = abs(had[one] / w - had[other] / v)
            assert apart <= largest[one] / w + largest[other] / v + Fraction(1, 10**9)
        if dice.random() < 0.2:
            ask(dice.choice("xyz"))
    check(fair.ledger, 400.0)
    assert min(had[key] for key in "abc") > 20


def test_grants_while_nobody_waits_do_not_count():
    fair = Fair(0, 1)
    for _ in range(100):  # a has had much, and nobody else wanted it
        fair.ask("a")
        fair.release_one()
    fair.ask("a")
    fair.ask("a")
    fair.ask("b")
    assert fair.grants(2) == ["a", "b"], "in the order of arrival"


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


def test_a_large_head_is_not_passed_by_newcomers():
    fair = Fair(0, 3)
    fair.ask("x", (1, 2))
    large = fair.ask("large", (1, 3))
    for _ in range(5):
        fair.ask("small")
    assert len(fair.ledger.holders) == 1
    fair.release_one()
    assert [*fair.ledger.holders] == [large]


def test_a_head_start_orders_the_requests_of_its_own_key_only():
    fair = Fair(0, 1)
    fair.ask("a")
    for _ in range(4):
        fair.ask("a")
    fair.ask("b")
    urgent = fair.ask("a", head_start=10**9)
    granted = [claim.key for claim in fair.ledger.release(1)]
    assert granted == [urgent], "before the others of a, which has the first turn"
    assert fair.release_one() == ["b"], "and b has the next turn all the same"


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


def test_plain_claims_count_as_one_slot():
    ledger = PathLedger((0, 1), fair_by=0)
    for n, key in enumerate("aaab"):
        ledger.request(PathClaim(n), (key, None))
    assert [claim.key for claim in ledger.release(0)] == [1]
    assert [claim.key for claim in ledger.release(1)] == [3]


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
