"""What must hold for a ledger: its invariants, and the states that a claim can have.

Tests call `check` after every step; the documentation draws its diagram from
`LIFE_CYCLE`. Nothing here runs in production.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Any

from slotwise._ledger.base import QUICK_LANE
from slotwise._ledger.ledger import Ledger

# (state, verb) -> the states a claim can be in afterwards
LIFE_CYCLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("new", "request"): ("holding", "waiting", "refused"),
    ("waiting", "request"): ("waiting", "holding"),  # of another, that finds a pause over
    ("waiting", "release"): ("waiting", "holding"),
    ("waiting", "cancel"): ("waiting", "holding", "ended"),
    ("waiting", "expire"): ("waiting", "holding", "ended"),
    ("waiting", "resize"): ("waiting", "holding", "refused"),
    ("waiting", "pause"): ("waiting",),
    ("waiting", "close"): ("refused",),
    ("holding", "release"): ("ended",),
    ("holding", "expire"): ("holding", "ended"),
    ("holding", "resize"): ("holding",),
    ("holding", "pause"): ("holding",),
    ("holding", "close"): ("holding",),
}


def check(ledger: Ledger[Any], unnamed_numbers: Collection[int] = ()) -> None:
    """Raise AssertionError naming the invariant that does not hold.

    ``unnamed_numbers`` are those that a quick lane remembers by itself instead
    of filing a claim. The ledger must not share its table of holders.
    """
    held = [number for claim in ledger.holders.values() for number in claim.numbers]
    held += unnamed_numbers
    assert ledger.in_use == len(held), f"I1: {ledger.in_use} in use, but {held} are held"
    if ledger.paused_until:
        assert not ledger.free, "I8: it is paused, and slots are free"
    elif ledger.line:
        assert ledger.in_use >= ledger.value, "I2: there is a line, and a slot is free"
    elif ledger.waiting:
        head = ledger.first_waiting()
        assert ledger.in_use + head.slots > ledger.value, f"I2: {head.key} fits, and waits"
    if not ledger.closed:
        assert len(ledger.free) <= max(ledger.value - len(held), 0), "I3: more free than fit"
    numbers = [*ledger.free, *chain(*ledger.reserve), *held]
    assert len(set(numbers)) == len(numbers), f"I4: a number stands twice in {sorted(numbers)}"
    assert all(1 <= number <= ledger.top for number in numbers), f"I4: top is {ledger.top}"
    if ledger.circulating or not ledger.closed:  # else it may have retired
        assert len(numbers) == ledger.top, f"I4: of 1..{ledger.top} only {sorted(numbers)} are left"
    careful = (
        ledger.closed
        or bool(ledger.waiting)
        or bool(ledger.reserve)
        or ledger.circulating > ledger.value
        or bool(ledger.paused_until)
        or not QUICK_LANE
    )
    assert ledger.attention == careful, f"I5: attention is {ledger.attention}"
    assert not (ledger.closed and (ledger.line or ledger.waiting)), (
        "I6: somebody waits on a closed ledger"
    )
    if ledger.deadlines is not None:
        keys = {*ledger.deadlines.young, *ledger.deadlines._aged}
        strangers = keys - ledger.holders.keys() - ledger.waiting.keys()
        assert not strangers, f"I7: {strangers} have deadlines"
        assert len(keys) == len(ledger.deadlines), "D1: a key is young and aged"
