"""The ledger and the model, driven by one sequence of verbs."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests._effort import examples
from tests._inside import give_number
from tests.ledger.invariants import check
from tests.ledger.model import Entry, Model
from tests.ledger.one_node import Claim, Ledger

from slotwise._ledger import slots as slots_module
from slotwise._ledger.path_nodes import LineGrant
from slotwise._ledger.slots import QUICK_LANE
from slotwise.errors import SemaphoreClosed

slots = st.sampled_from([1, 1, 1, 2, 3, 4])
seconds = st.sampled_from([1.0, 2.0, 3.0, 5.0])
perhaps_seconds = st.none() | seconds
values = st.integers(1, 6)
which = st.integers(0, 30)


class LedgerAgainstModel(RuleBasedStateMachine):
    """Who uses the quick lane does as `Ledger` says; the model knows nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.keys: list[Hashable] = []
        self.retired = False
        # Numbers of those who hold without a claim, by the model's key.
        self.unnamed: dict[Hashable, int] = {}
        self.tickets: set[Hashable] = set()
        self.ledger = Ledger(3)
        self.model = Model(3)

    # ----------------------------------------------------------- the helpers

    def new_key(self, prefix: str = "k") -> str:
        key = f"{prefix}{len(self.keys)}"
        self.keys.append(key)
        return key

    def some_key(self, number: int) -> Hashable:
        return self.keys[-1 - number % len(self.keys)] if self.keys else "unknown"

    def assert_same(self, granted: list[Any], expected: list[Hashable]) -> None:
        assert [claim.key for claim in granted] == expected
        for claim in granted:
            self.note_granted(claim)

    def note_granted(self, claim: Any) -> None:
        entry = self.model.find(self.model.holding, claim.key)
        assert entry is not None
        numbers = getattr(claim, "numbers", (claim._slot_number,))  # the line has no claims
        assert list(numbers) == entry.numbers
        assert claim._slot_number == min(entry.numbers)
        if not claim.named:
            self.unnamed[claim.key] = claim._slot_number
            self.tickets.discard(claim.key)

    # -------------------------------------------------------------- the rules

    @rule(wanted=slots, ttl=perhaps_seconds, wait=perhaps_seconds)
    def request(self, wanted: int, ttl: float | None, wait: float | None) -> None:
        key = self.new_key()
        wait_until = None if wait is None else self.now + wait
        try:
            expected = self.model.request(Entry(key, wanted, ttl), self.now, wait_until)
        except (ValueError, SemaphoreClosed) as refusal:
            with pytest.raises(type(refusal)):
                self.ledger.request(Claim(key, wanted, ttl), self.now, wait_until=wait_until)
        else:
            granted = self.ledger.request(Claim(key, wanted, ttl), self.now, wait_until=wait_until)
            self.assert_same(granted, expected)

    @rule(wanted=slots, ttl=perhaps_seconds)
    def try_request(self, wanted: int, ttl: float | None) -> None:
        key = self.new_key()
        claim = Claim(key, wanted, ttl)
        try:
            expected = self.model.try_request(Entry(key, wanted, ttl), self.now)
        except (ValueError, SemaphoreClosed) as refusal:
            with pytest.raises(type(refusal)):
                self.ledger.try_request(claim, self.now)
        else:
            assert self.ledger.try_request(claim, self.now) is expected
            if expected:
                self.note_granted(claim)

    @rule(number=which)
    def release(self, number: int) -> None:
        key = self.some_key(number)
        if key in self.unnamed:
            granted = self.ledger.give_number(self.unnamed.pop(key), self.now)
        else:
            granted = self.ledger.release(key, self.now)
        self.assert_same(granted, self.model.release(key, self.now))

    @rule()
    def release_what_nobody_has(self) -> None:
        assert self.ledger.release("unknown", self.now) == []

    @rule(number=which)
    def cancel(self, number: int) -> None:
        key = self.some_key(number)
        if key in self.tickets:
            return  # a ticket stays in the line; see `give_up_ticket`
        self.assert_same(self.ledger.cancel(key, self.now), self.model.cancel(key, self.now))

    @rule(later=st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]))
    def expire(self, later: float) -> None:
        self.now += later
        holders, waiters, granted = self.ledger.expire(self.now)
        expected_holders, expected_waiters, expected = self.model.expire(self.now)
        # Those with the same deadline end in any order.
        assert {claim.key for claim in holders} == set(expected_holders)
        assert {claim.key for claim in waiters} == set(expected_waiters)
        self.assert_same(granted, expected)

    @rule(value=values)
    def resize(self, value: int) -> None:
        if self.ledger.closed:
            return  # drivers refuse
        refused, granted = self.ledger.resize(value, self.now)
        expected_refused, expected = self.model.resize(value, self.now)
        assert [claim.key for claim in refused] == expected_refused
        self.assert_same(granted, expected)

    @precondition(lambda self: len(self.keys) > 8)
    @rule(really=st.sampled_from([False, False, False, True]))
    def close(self, really: bool) -> None:
        if not really:
            return
        refused = self.ledger.close(self.now)
        assert [claim.key for claim in refused] == self.model.close()
        assert all(claim._slot_number == 0 for claim in refused if isinstance(claim, LineGrant))
        self.tickets.clear()

    @precondition(lambda self: not self.retired)
    @rule(really=st.sampled_from([False, False, True]))
    def reopen(self, really: bool) -> None:
        if really or self.ledger.closed:
            self.assert_same(self.ledger.reopen(self.now), self.model.reopen(self.now))

    @precondition(lambda self: not self.retired)
    @rule(later=seconds)
    def pause(self, later: float) -> None:
        self.ledger.pause(self.now + later)
        self.model.pause(self.now + later)

    @precondition(lambda self: len(self.keys) > 3)
    @rule()
    def retire(self) -> None:
        retired = self.ledger.retire()
        assert retired is self.model.retire()
        self.retired = self.retired or retired

    @rule(ttl=perhaps_seconds, named=st.booleans())
    def take_quickly(self, ttl: float | None, named: bool) -> None:
        ledger = self.ledger
        if ledger.line or ledger.attention:
            return
        try:
            number = heappop(ledger.node().free)
        except IndexError:
            return
        key = self.new_key("quick")
        if not named:
            assert self.model.try_request(Entry(key), self.now)
            self.unnamed[key] = number
        else:
            assert self.model.try_request(Entry(key, ttl=ttl), self.now)
            claim = Claim(key, 1, ttl)
            give_number(claim, number)
            claim.nodes = (ledger.node(),)
            ledger.holders[key] = claim
            if ttl is not None:
                ledger.timed().young[key] = self.now + ttl
        assert self.model.find(self.model.holding, key).numbers == [number]

    @rule(number=which)
    def give_quickly(self, number: int) -> None:
        key = self.some_key(number)
        ledger = self.ledger
        if key in self.unnamed:
            number = self.unnamed.pop(key)
        else:
            claim = ledger.holders.get(key)
            if claim is None or claim.slots > 1:
                return
            del ledger.holders[key]
            number = claim.slot_number
            if ledger.deadlines is not None:
                ledger.deadlines.discard(key)
        heappush(ledger.node().free, number)
        granted = []
        if ledger.line or ledger.attention:
            ledger.look_after((ledger.node(),))
            granted = ledger.serve(self.now)
        self.assert_same(granted, self.model.release(key, self.now))

    @rule()
    def queue_in_the_line(self) -> None:
        ledger = self.ledger
        if ledger.attention:
            return
        if not ledger.line and not ledger.waiting:
            ledger.open_line()
        key = self.new_key("ticket")
        self.tickets.add(key)
        ledger.line.append(key)
        granted = []
        node = ledger.node()
        if node.free or node.circulating < node.value or ledger.attention:
            granted = ledger.serve(self.now)
        self.assert_same(granted, self.model.request(Entry(key), self.now, None))

    @rule(number=which)
    def give_up_ticket(self, number: int) -> None:
        """As a driver tidies the line."""
        key = self.some_key(number)
        if key not in self.tickets:
            return
        self.tickets.discard(key)
        self.ledger.line.remove(key)
        self.assert_same(self.ledger.serve(self.now), self.model.cancel(key, self.now))

    # ---------------------------------------------------------- always the same

    @invariant()
    def the_invariants_hold(self) -> None:
        check(self.ledger, self.now, resized=True, unnamed_numbers=self.unnamed.values())

    @invariant()
    def both_say_the_same(self) -> None:
        ledger, model = self.ledger, self.model
        assert ledger.in_use == model.in_use
        assert [*ledger.line, *ledger.waiting] == [entry.key for entry in model.waiting]
        named = {e.key: tuple(e.numbers) for e in model.holding if e.key not in self.unnamed}
        assert {key: claim.numbers for key, claim in ledger.holders.items()} == named
        assert ledger.next_deadline() == model.next_deadline()
        assert ledger.closed == model.closed
        assert ledger.paused_until == model.paused_until


LedgerAgainstModel.TestCase.settings = examples(25, stateful_step_count=50)


@pytest.mark.skipif(not QUICK_LANE, reason="half of the rules would do nothing")
class TestLedgerAgainstModel(LedgerAgainstModel.TestCase):
    pass


@pytest.mark.skipif(not QUICK_LANE, reason="half of the rules would do nothing")
@pytest.mark.usefixtures("few_is_one")
class TestLedgerThatKeepsRangesAgainstModel(LedgerAgainstModel.TestCase):
    """As with acquisitions of very many slots, whose numbers are never handled one by one."""


@pytest.fixture
def few_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "FEW", 1)
