"""What the ledger promises, one sentence at a time."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import pytest
from tests.ledger.invariants import LIFE_CYCLE, check
from tests.ledger.one_node import Claim, Ledger

from slotwise.errors import SemaphoreClosed


def keys(claims: list[Claim]) -> list[Hashable]:
    return [claim.key for claim in claims]


# --------------------------------------------------------------------- the cost


class CountsOperations(OrderedDict[Hashable, Any]):
    """A queue that counts how often it is touched, and by how much it is walked."""

    operations = 0

    def __iter__(self):
        for key in super().__iter__():
            self.operations += 1
            yield key

    def values(self):
        self.operations += len(self)
        return super().values()

    def __delitem__(self, key: Hashable) -> None:
        self.operations += 1
        super().__delitem__(key)

    def __contains__(self, key: object) -> bool:
        self.operations += 1
        return super().__contains__(key)

    def popitem(self, last: bool = True) -> Any:
        self.operations += 1
        return super().popitem(last)

    def move_to_end(self, key: Hashable, last: bool = True) -> None:
        self.operations += 1
        super().move_to_end(key, last)


def operations_of_cancelling(waiters: int) -> int:
    ledger = Ledger(1)
    ledger.request(Claim("holder"))
    ledger.waiting = ledger.queue.waiting = counting = CountsOperations()
    for key in range(waiters):
        ledger.request(Claim(key), wait_until=float(key))
    counting.operations = 0
    middle = range(waiters // 4, 3 * waiters // 4)
    for key in middle:
        ledger.cancel(key)
    assert len(counting) == waiters - len(middle)
    assert len(ledger.timed()) == len(counting)
    return counting.operations // len(middle)


def test_to_cancel_from_the_middle_costs_the_same_among_a_hundred_thousand():
    few = operations_of_cancelling(1_000)
    assert operations_of_cancelling(100_000) == few
    assert few < 10


def test_a_ledger_of_a_million_slots_starts_small_and_grows_with_its_holders():
    ledger = Ledger(1_000_000)
    ledger.request(Claim("holder", 3))
    assert ledger.node().circulating <= 2 * ledger.in_use
    check(ledger, resized=True)


def test_numbers_below_somebody_else_are_the_lowest_free_however_many_they_are():
    ledger = Ledger(100_000)
    ledger.request(Claim("wide", 50_000))
    ledger.request(Claim("above"))
    ledger.release("wide")
    for key in range(3):
        ledger.request(Claim(key))
    ledger.request(Claim("wide", 99_990))
    assert [ledger.holders[key].slot_number for key in ("above", 0, 1, 2)] == [50_001, 1, 2, 3]
    wide = ledger.holders["wide"]
    assert list(wide.ranges) == [range(4, 50_001), range(50_002, 99_995)]
    ledger.release(1)
    ledger.request(Claim("two", 2))
    assert ledger.holders["two"].numbers == (2, 99_995)
    check(ledger, resized=True)


# --------------------------------------------------------------- the life cycle


class Lives:
    """In which state every claim is, and how it came there."""

    def __init__(self) -> None:
        self.ledger = Ledger(3)
        self.states: dict[Hashable, str] = {}
        self.seen: set[tuple[str, str, str]] = set()

    def after(self, verb: str, refused: list[Claim] | None = None) -> None:
        """Look at everybody anew: what changed, changed by ``verb``."""
        gone = set(keys(refused or []))
        for key, before in self.states.items():
            if key in self.ledger.holders:
                now = "holding"
            elif key in self.ledger.waiting:
                now = "waiting"
            elif before in ("ended", "refused"):
                continue
            else:
                now = "refused" if key in gone else "ended"
            self.seen.add((before, verb, now))
            self.states[key] = now


def observed_transitions(seed: int) -> set[tuple[str, str, str]]:
    choose = random.Random(seed)
    lives = Lives()
    ledger, now = lives.ledger, 0.0
    for key in range(60):
        claim = Claim(key, choose.randint(1, 4), choose.choice([None, 3.0]))
        lives.states[key] = "new"
        try:
            ledger.request(claim, now, wait_until=choose.choice([None, now + 2]))
            lives.after("request")
        except (ValueError, SemaphoreClosed):
            lives.after("request", [claim])
        now += choose.choice([0.0, 1.0])
        verb = choose.choice(["release", "cancel", "expire", "resize", "pause", "nothing"])
        if verb in ("release", "cancel"):
            getattr(ledger, verb)(choose.randrange(key + 1), now)
            lives.after(verb)
        elif verb == "expire":
            ledger.expire(now)
            lives.after("expire")
        elif verb == "resize" and not ledger.closed:
            lives.after("resize", ledger.resize(choose.randint(1, 4), now)[0])
        elif verb == "pause" and key % 10 == 0:
            ledger.pause(now + 1)
            lives.after("pause")
        if key == 50:
            lives.after("close", ledger.close())
        check(ledger, resized=True)
    return lives.seen


@pytest.fixture(scope="module")
def transitions() -> set[tuple[str, str, str]]:
    return set.union(*(observed_transitions(seed) for seed in range(100)))


TABLE = {(state, verb, after) for (state, verb), states in LIFE_CYCLE.items() for after in states}


def test_every_change_of_a_claim_stands_in_the_table_of_its_life(transitions):
    changes = {change for change in transitions if change[0] != change[2]}
    assert changes - TABLE == set()


def test_every_entry_of_the_table_of_its_life_is_seen(transitions):
    assert TABLE - transitions == set()
