"""What the ledger promises, one sentence at a time."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tests.ledger.invariants import LIFE_CYCLE, check
from tests.ledger.one_node import Claim, Ledger

from slotwise._ledger import NEVER
from slotwise.errors import SemaphoreClosed


def keys(claims: list[Claim]) -> list[Hashable]:
    return [claim.key for claim in claims]


def numbers(ledger: Ledger) -> dict[Hashable, tuple[int, ...]]:
    return {key: claim.numbers for key, claim in ledger.holders.items()}


# -------------------------------------------------------------------- the order


def test_nobody_passes_a_large_head_however_small():
    ledger = Ledger(4)
    ledger.request(Claim("holder", 2))
    assert ledger.request(Claim("large", 4)) == []
    assert ledger.request(Claim("small", 1)) == []
    assert ledger.try_request(Claim("tries", 1)) is False
    assert ledger.in_use == 2
    assert keys(ledger.release("holder")) == ["large"]
    assert keys(ledger.release("large")) == ["small"]
    check(ledger, resized=True)


def test_those_behind_a_large_head_are_served_when_it_gives_up():
    ledger = Ledger(2)
    ledger.request(Claim("holder"))
    ledger.request(Claim("large", 2))
    ledger.request(Claim("small"))
    assert keys(ledger.cancel("large")) == ["small"]
    check(ledger, resized=True)


def test_a_request_for_more_than_the_value_is_refused_at_once():
    ledger = Ledger(2)
    with pytest.raises(ValueError, match="that can never be granted"):
        ledger.request(Claim("too large", 3))
    with pytest.raises(ValueError, match="that can never be granted"):
        ledger.try_request(Claim("too large", 3))
    ledger.request(Claim("holder", 2))
    ledger.request(Claim("waiter"))
    with pytest.raises(ValueError, match="that can never be granted"):
        ledger.request(Claim("too large", 3))
    assert keys(list(ledger.waiting.values())) == ["waiter"]
    check(ledger, resized=True)


def test_a_waiter_whose_time_is_up_with_that_of_a_holder_does_not_get_its_slot():
    ledger = Ledger(1)
    ledger.request(Claim("holder", ttl=5.0), 0.0)
    ledger.request(Claim("late"), 0.0, wait_until=5.0)
    ledger.request(Claim("next"), 0.0, wait_until=6.0)
    holders, waiters, granted = ledger.expire(5.0)
    assert (keys(holders), keys(waiters), keys(granted)) == (["holder"], ["late"], ["next"])
    assert ledger.next_deadline() == NEVER
    check(ledger, resized=True)


# ------------------------------------------------------------------ the numbers


def test_the_lowest_free_numbers_are_given_and_all_are_unique():
    ledger = Ledger(10)
    for key in range(10):
        ledger.request(Claim(key))
    assert numbers(ledger) == {key: (key + 1,) for key in range(10)}
    for key in (7, 2, 4):
        ledger.release(key)
    ledger.request(Claim("two", 2))
    ledger.request(Claim("one"))
    assert ledger.holders["two"].numbers == (3, 5)
    assert ledger.holders["two"].slot_number == 3
    assert ledger.holders["one"].numbers == (8,)
    check(ledger, resized=True)


def test_after_a_shrink_nothing_is_granted_until_it_fits_and_numbers_return_to_one_to_value():
    ledger = Ledger(4)
    for key in range(4):
        ledger.request(Claim(key))
    ledger.request(Claim("waiter"))
    assert ledger.resize(2) == ([], [])
    for key in (0, 1):
        assert ledger.release(key) == []
        check(ledger, resized=True)
    assert ledger.in_use == 2
    assert keys(ledger.release(3)) == ["waiter"]
    assert ledger.holders["waiter"].numbers == (1,)
    ledger.release(2)
    ledger.request(Claim("newcomer"))
    assert numbers(ledger) == {"waiter": (1,), "newcomer": (2,)}
    assert ledger.node().top == 2
    check(ledger, resized=True)


def test_a_shrink_refuses_those_who_can_never_fit_and_serves_those_behind():
    ledger = Ledger(4)
    ledger.request(Claim("holder"))
    ledger.request(Claim("large", 4), wait_until=9.0)
    ledger.request(Claim("small"))
    refused, granted = ledger.resize(2)
    assert (keys(refused), keys(granted)) == (["large"], ["small"])
    assert ledger.next_deadline() == NEVER
    check(ledger, resized=True)


def test_growth_serves_as_many_waiters_as_fit():
    ledger = Ledger(1)
    for key in range(5):
        ledger.request(Claim(key))
    refused, granted = ledger.resize(4)
    assert (keys(refused), keys(granted)) == ([], [1, 2, 3])
    assert numbers(ledger) == {0: (1,), 1: (2,), 2: (3,), 3: (4,)}
    check(ledger, resized=True)


def test_a_closed_ledger_refuses_newcomers_and_waiters_and_lets_holders_leave():
    ledger = Ledger(1)
    ledger.request(Claim("holder"))
    ledger.request(Claim("waiter"), wait_until=9.0)
    assert keys(ledger.close()) == ["waiter"]
    with pytest.raises(SemaphoreClosed):
        ledger.request(Claim("newcomer"))
    with pytest.raises(SemaphoreClosed):
        ledger.try_request(Claim("newcomer"))
    assert ledger.in_use == 1
    assert ledger.release("holder") == []
    assert ledger.in_use == 0
    check(ledger, resized=True)


def test_a_reopened_ledger_has_all_its_slots_but_those_still_held():
    ledger = Ledger(4)
    for key in "abc":
        ledger.request(Claim(key))
    ledger.close()
    ledger.release("b")
    assert ledger.reopen() == []
    check(ledger, resized=True)
    for key in "de":
        assert ledger.request(Claim(key)) != []
    assert numbers(ledger) == {"a": (1,), "c": (3,), "d": (2,), "e": (4,)}
    assert ledger.request(Claim("f")) == []
    check(ledger, resized=True)


def test_a_ledger_retires_only_when_nobody_is_there():
    ledger = Ledger(2)
    ledger.request(Claim("holder"))
    assert ledger.retire() is False
    assert ledger.attention is False
    ledger.release("holder")
    assert ledger.retire() is True
    with pytest.raises(SemaphoreClosed):
        ledger.request(Claim("newcomer"))
    assert ledger.retire() is False
    check(ledger, resized=True)


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


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of the ledger a call runs, which is what it costs on a quiet machine."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def costs_with(slots: int) -> list[int]:
    ledger = Ledger(slots + 2)
    ledger.request(Claim("below"))
    calls: list[Callable[[], object]] = [
        partial(ledger.request, Claim("wide", slots)),
        partial(ledger.request, Claim("above")),
        partial(ledger.release, "wide"),
        partial(ledger.request, Claim("wide again", slots - 7, ttl=1.0)),
        partial(ledger.expire, 2.0),
        partial(ledger.resize, 10),
        partial(ledger.resize, slots),
        partial(ledger.release, "above"),
        partial(ledger.request, Claim("all", slots - 1)),
        ledger.close,
        partial(ledger.release, "all"),
        ledger.reopen,
    ]
    costs = [lines_of(call) for call in calls]
    assert ledger.holders.keys() == {"below"}
    assert ledger.node().top == 1
    assert not ledger.attention
    return costs


def test_a_million_slots_cost_what_ten_thousand_do():
    costs = costs_with(10_000)
    assert costs_with(1_000_000) == costs
    assert max(costs) < 500


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
