"""Ranges against a plain set of numbers."""

from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from slotwise._ledger.ranges import Ranges, ranges_of

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
