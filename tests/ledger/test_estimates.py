"""Estimates against what the ledger then does, and hold times against a plain list of them."""

from __future__ import annotations

import random

import pytest

from slotwise._core.rates import Rate
from slotwise._ledger.estimates import RECENT, HoldTimes
from slotwise._ledger.path_estimates import path_in
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger


@pytest.mark.parametrize("seed", range(30))
def test_an_estimate_is_zero_exactly_if_a_newcomer_is_granted_at_once(seed: int) -> None:
    dice = random.Random(seed)
    values = [dice.choice([0, 1, 2, Rate(1, per=3, burst=3)]), dice.choice([1, 2, 3])]
    ledger: PathLedger[PathClaim] = PathLedger(values)
    now = 100.0
    for number in range(150):
        now += dice.choice([0, 0.25, 1])
        ledger.expire(now)
        path = dice.choice(["a", "b", "c"]), None
        needs = dice.choice([1, 1, 2]), dice.choice([1, 1, 2])
        while ledger.unfinished:
            ledger.serve(now)
        if ledger.unfit(needs, path) is None:
            expected = path_in(ledger, path, needs, now, 2.0)
            assert expected is not None
            unknown = path_in(ledger, path, needs, now, None)
            assert unknown is None or unknown == expected
            claim = PathClaim(number, needs)
            fits = ledger.try_request(claim, path, now)
            assert fits == (expected == 0.0)
            if fits and dice.random() < 0.3:  # else it stays
                ledger.release(number, now)
            elif not fits and dice.random() < 0.7:
                ledger.request(claim, path, now)
        for key in [*ledger.holders, *ledger.waiting]:
            if dice.random() < 0.15:
                (ledger.release if key in ledger.holders else ledger.cancel)(key, now)


def test_mean_holds_follow_a_change_and_never_leave_the_range_of_what_was_held() -> None:
    dice = random.Random(5)
    holds = HoldTimes()
    assert holds.mean is None
    for seconds in [dice.uniform(1, 2) for _ in range(500)]:
        holds.note(seconds, dice.choice([1, 1, 3]))
        assert holds.mean is not None
        assert 1 <= holds.mean <= 2
    for _ in range(4 * RECENT):
        holds.note(10.0)
    assert holds.mean == pytest.approx(10.0, rel=0.05)


def test_what_is_held_together_is_timed_as_each_hold_would_be() -> None:
    dice = random.Random(6)
    together, each = HoldTimes(), HoldTimes()
    together.begin(0.0)
    now, since = 0.0, [0.0] * 4
    for _ in range(30):
        now += dice.uniform(0, 1)
        slot = dice.randrange(4)
        together.end(now, 4, 1)  # it is taken again at once
        each.note(now - since[slot])
        since[slot] = now
    rest = sum(now - start for start in since)  # of those that have not ended
    assert together.busy == pytest.approx(each.busy + rest)
    assert together.ended == each.ended
