"""Deadlines against a list that is sorted anew for every question."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests._effort import examples

from slotwise._ledger import NEVER, Deadlines
from slotwise._ledger.ranges import Ranges, ranges_of

keys = st.integers(0, 12).map(lambda number: f"key {number}")
times = st.integers(0, 20).map(float)

# What D3 calls a little.
A_LITTLE = 64


def heap_of(deadlines: Deadlines) -> int:
    """How many entries it has, also of those who have left."""
    return len(deadlines._heap)


class DeadlinesAgainstSortedList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.model: list[tuple[float, Hashable]] = []

    def forget(self, key: Hashable) -> None:
        self.model = [(when, other) for when, other in self.model if other != key]

    @rule(key=keys, when=times)
    def set(self, key: str, when: float) -> None:
        self.deadlines.set(key, when)
        self.forget(key)
        self.model.append((when, key))

    @rule(key=keys, when=times)
    def set_a_new_one_directly(self, key: str, when: float) -> None:
        if self.deadlines.get(key) is None:
            self.deadlines.young[key] = when
            self.model.append((when, key))

    @rule(key=keys)
    def discard(self, key: str) -> None:
        self.deadlines.discard(key)
        self.forget(key)

    @rule(key=keys)
    def take_a_young_one_back_directly(self, key: str) -> None:
        if self.deadlines.young.pop(key, None) is not None:
            self.forget(key)

    @rule()
    def earliest(self) -> None:
        self.model.sort()
        assert self.deadlines.earliest() == (self.model[0][0] if self.model else NEVER)

    @rule(now=times)
    def pop_due(self, now: float) -> None:
        due = self.deadlines.pop_due(now)
        when_of = {key: when for when, key in self.model}
        expected = sorted(when for when, _ in self.model if when <= now)
        assert [when_of[key] for key in due] == expected, "the oldest deadline comes first"
        assert len(set(due)) == len(due)
        self.model = [(when, key) for when, key in self.model if when > now]

    @invariant()
    def both_know_the_same(self) -> None:
        assert len(self.deadlines) == len(self.model)
        for when, key in self.model:
            assert self.deadlines.get(key) == when


DeadlinesAgainstSortedList.TestCase.settings = examples(25, stateful_step_count=40)
TestDeadlinesAgainstSortedList = DeadlinesAgainstSortedList.TestCase


def test_keys_that_cannot_be_compared_may_share_a_time():
    deadlines = Deadlines()
    keys = [object(), object(), "text", 4, None]
    for key in keys:
        deadlines.set(key, 1.0)
    assert set(deadlines.pop_due(1.0)) == set(keys)


def test_the_heap_stays_bounded_while_somebody_asks_for_the_earliest_in_between():
    deadlines = Deadlines()
    longest = 0
    for key in range(100_000):
        # The latest deadline first, so that the dead ones are never on the top.
        deadlines.set(key, float(-key % 1000))
        deadlines.set("head", -1.0)
        deadlines.earliest()
        deadlines.discard(key)
        longest = max(longest, heap_of(deadlines))
    assert longest <= 2 * len(deadlines) + A_LITTLE + 2


def test_a_hundred_thousand_aged_ones_that_are_discarded_leave_the_heap_at_the_next_look():
    deadlines = Deadlines()
    for key in range(100_000):
        deadlines.set(key, float(key))
    assert deadlines.earliest() == 0.0
    for key in range(1, 100_000):
        deadlines.discard(key)
    assert deadlines.earliest() == 0.0
    assert heap_of(deadlines) <= 2 * len(deadlines) + A_LITTLE


# ------------------------------------------------------------------------ ranges


numbers = st.sets(st.integers(1, 40))


def check(ranges: Ranges, expected: set[int]) -> None:
    assert [*chain(*ranges)] == sorted(expected)
    assert ranges.total == len(expected)
    assert all(one.stop < other.start for one, other in pairwise(ranges))
    assert all(ranges), "an empty range"


@given(numbers)
def test_numbers_make_up_as_few_ranges_as_possible(given_numbers: set[int]) -> None:
    check(ranges_of(given_numbers), given_numbers)


@given(numbers, st.integers(1, 40), st.integers(1, 10))
def test_what_is_added_joins_what_it_touches(there: set[int], first: int, count: int) -> None:
    added = range(first, first + count)
    ranges = ranges_of(there - {*added})
    ranges.add(added)
    check(ranges, there | {*added})


@given(numbers, st.integers(0, 50))
def test_the_lowest_are_taken_and_the_rest_stays(there: set[int], how_many: int) -> None:
    ranges = ranges_of(there)
    taken = ranges.take_lowest(how_many)
    lowest = sorted(there)[:how_many]
    check(Ranges(taken), {*lowest})
    check(ranges, there - {*lowest})
