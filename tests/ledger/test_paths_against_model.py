"""The ledger of paths and its model, driven by one sequence of verbs."""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests._effort import examples
from tests._inside import give_number
from tests.ledger.invariants import check
from tests.ledger.path_model import PathModel, Request, in_microseconds

from slotwise._core.rates import Rate
from slotwise._ledger import path_queue
from slotwise._ledger.idle_nodes import forget_idle
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateNode
from slotwise.errors import SemaphoreClosed

# Few keys, so that they meet; the widest tier of some ledgers has keys too.
tenants = st.sampled_from(["a", "b", "c"])
models = st.sampled_from(["x", "y"])
values = st.sampled_from([0, 1, 1, 2, 2, 3])
# What is needed of each tier: mostly one slot.
perhaps_several = st.none() | st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 3)
rates = st.sampled_from(
    [
        Rate(1, per=1, burst=1),
        Rate(2, per=1, burst=3),
        Rate(4, per=0.5, burst=3),
        Rate(3, per=2, burst=4),
    ]
)
# Microseconds: those of the last requests are passed, or let pass.
head_starts = st.sampled_from([0, 0, 1, 2, 3, 10, 1_000_001, -1, -2, -10, -1_000_001])
perhaps_seconds = st.sampled_from([None, None, None, 1.0, 2.0, 5.0])
which = st.integers(0, 30)

# So little that keeping, which is for emergencies, is an everyday thing here.
PATIENCE = 1


Needs = tuple[int, ...] | None


def claim_of(key: Hashable, ttl: float | None, needs: Needs, head_start: int = 0) -> PathClaim:
    return PathClaim(key, needs, ttl, head_start)


class PathsAgainstModel(RuleBasedStateMachine):
    """Whatever is unfinished after a call is finished before the two are compared."""

    looks = 64

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.keys: list[Hashable] = []
        self.resized = self.is_late = False
        self.usual = path_queue.PATIENCE, path_queue.LOOKS
        path_queue.PATIENCE, path_queue.LOOKS = PATIENCE, self.looks

    def teardown(self) -> None:
        path_queue.PATIENCE, path_queue.LOOKS = self.usual

    @initialize(limits=st.tuples(values, values, values))
    def begin(self, limits: tuple[int | Rate, ...]) -> None:
        self.ledger: PathLedger[PathClaim] = PathLedger(limits)
        self.model = PathModel(limits, PATIENCE, self.now)

    # ----------------------------------------------------------- the helpers

    def new_key(self) -> str:
        self.keys.append(f"k{len(self.keys)}")
        return str(self.keys[-1])

    def some_key(self, number: int) -> Hashable:
        return self.keys[-1 - number % len(self.keys)] if self.keys else "unknown"

    def needs(self, needs: Needs) -> Needs:
        """Where there are rates, a claim says what it needs, be it one of each."""
        has_rates = any(isinstance(tier.value, Rate) for tier in self.ledger.tiers)
        return (1, 1, 1) if has_rates and needs is None else needs

    def weight_of(self, path: tuple[Hashable, ...]) -> float:
        return 1.0

    def assert_same(self, granted: list[Any], expected: list[Hashable]) -> None:
        while self.ledger.unfinished:
            granted += self.ledger.serve(self.now)
        self.is_late = False
        assert [claim.key for claim in granted] == expected

    # -------------------------------------------------------------- the rules

    @rule(crowd=st.lists(st.tuples(tenants, models, perhaps_several), min_size=2, max_size=6))
    def several_request(self, crowd: list[tuple[str, str, Needs]]) -> None:
        for tenant, model, needs in crowd:
            self.ask((tenant, model, None), needs=needs)

    @rule(
        tenant=tenants,
        model=models,
        needs=perhaps_several,
        ttl=perhaps_seconds,
        wait=perhaps_seconds,
    )
    def request(
        self, tenant: str, model: str, needs: Needs, ttl: float | None, wait: float | None
    ) -> None:
        self.ask((tenant, model, None), ttl, wait, needs)

    @rule(tenant=tenants, model=models, needs=perhaps_several, head_start=head_starts)
    def request_with_a_head_start(
        self, tenant: str, model: str, needs: Needs, head_start: int
    ) -> None:
        self.ask((tenant, model, None), needs=needs, head_start=head_start)

    def ask(
        self,
        path: tuple[Hashable, ...],
        ttl: float | None = None,
        wait: float | None = None,
        needs: Needs = None,
        head_start: int = 0,
    ) -> None:
        key = self.new_key()
        needs = self.needs(needs)
        until = None if wait is None else self.now + wait
        weight = self.weight_of(path)
        request = Request(key, path, ttl, needs, head_start=head_start, weight=weight)
        claim = claim_of(key, ttl, needs, head_start)
        if self.model.can_never_fit(request):
            with pytest.raises(ValueError, match="never"):
                self.ledger.request(claim, path, self.now, wait_until=until)
            return
        expected = self.model.request(request, self.now, until)
        granted = self.ledger.request(claim, path, self.now, wait_until=until, weight=weight)
        self.assert_same(granted, expected)

    @rule(
        tenant=tenants,
        model=models,
        needs=perhaps_several,
        ttl=perhaps_seconds,
        head_start=head_starts,
    )
    def try_request(
        self, tenant: str, model: str, needs: Needs, ttl: float | None, head_start: int
    ) -> None:
        key, path = self.new_key(), (tenant, model, None)
        needs = self.needs(needs)
        weight = self.weight_of(path)
        request = Request(key, path, ttl, needs, head_start=head_start, weight=weight)
        claim = claim_of(key, ttl, needs, head_start)
        self.assert_same(self.ledger.serve(self.now), self.model.serve(self.now))
        if not self.model.can_never_fit(request):
            expected = self.model.try_request(request, self.now)
            assert self.ledger.try_request(claim, path, self.now, weight) is expected
            self.assert_same(self.ledger.serve(self.now), self.model.serve(self.now))

    @rule(tenant=tenants, model=models)
    def take_quickly(self, tenant: str, model: str) -> None:
        """As the quick lane does; the model knows nothing of it."""
        ledger, path = self.ledger, (tenant, model, None)
        if ledger.attention:
            return
        taken = []
        try:
            for nodes, key in zip(ledger.tables, path, strict=True):
                number = heappop(nodes[key].free)
                taken.append(nodes[key])
        except (KeyError, IndexError):
            for node in taken:
                heappush(node.free, 1)
            assert not ledger.attention
            return
        claim = PathClaim(self.new_key())
        claim.nodes = taken
        give_number(claim, number)
        ledger.holders[claim.key] = claim
        assert self.model.try_request(Request(claim.key, path), self.now)

    @rule(number=which)
    def give_quickly(self, number: int) -> None:
        ledger, key = self.ledger, self.some_key(number)
        if ledger.attention or key not in ledger.holders or ledger.holders[key].needs:
            return
        claim = ledger.holders.pop(key)
        if ledger.deadlines is not None:
            ledger.deadlines.discard(key)
        for node in claim.nodes:
            node.used = self.now
            heappush(node.free, claim.slot_number)
        assert not ledger.attention
        self.assert_same([], self.model.release(key, self.now))

    @rule(number=which)
    def release(self, number: int) -> None:
        key = self.some_key(number)
        granted = self.ledger.release(key, self.now)
        self.assert_same(granted, self.model.release(key, self.now))

    @precondition(lambda self: self.model.holding)
    @rule(number=which)
    def release_a_holder(self, number: int) -> None:
        """Most keys are of those who wait, and nothing moves before somebody releases."""
        key = self.model.holding[number % len(self.model.holding)].key
        granted = self.ledger.release(key, self.now)
        self.assert_same(granted, self.model.release(key, self.now))

    @rule(number=which)
    def cancel(self, number: int) -> None:
        key = self.some_key(number)
        granted = self.ledger.cancel(key, self.now)
        self.assert_same(granted, self.model.cancel(key, self.now))

    @rule(later=st.sampled_from([0.0, 1.0, 2.0]))
    def expire(self, later: float) -> None:
        self.now += later
        holders, waiters, granted = self.ledger.expire(self.now)
        expected_holders, expected_waiters, expected = self.model.expire(self.now)
        assert {claim.key for claim in holders} == set(expected_holders)
        assert {claim.key for claim in waiters} == set(expected_waiters)
        self.assert_same(granted, expected)

    @rule(tier=st.integers(0, 2), value=values, rate=rates, key=st.none() | tenants | models)
    def resize(self, tier: int, value: int | Rate, rate: Rate, key: str | None) -> None:
        self.resized = True
        if isinstance(self.ledger.tiers[tier].value, Rate):
            value = rate
        one = key is not None and tier < 2
        refused, granted = self.ledger.resize(tier, value, key, self.now, one=one)
        expected_refused, expected = self.model.resize(tier, value, key, one, self.now)
        assert [claim.key for claim in refused] == expected_refused
        self.assert_same(granted, expected)

    @rule(
        tier=st.integers(0, 2), age=st.sampled_from([0.0, 1.0]), most=st.none() | st.integers(0, 2)
    )
    def forget_idle(self, tier: int, age: float, most: int | None) -> None:
        """The model has nothing to forget, so nobody can notice it."""
        forget_idle(self.ledger, tier, self.now, age, most)
        if most is not None and tier < 2:
            which = self.ledger.tiers[tier]
            idle = [node for node in which.nodes.values() if not node.in_use and not node.waiting]
            if isinstance(which.value, Rate):  # or it is not full
                idle = [node for node in idle if node.level == node.rate.full and not node.kept]
                # One that was given back what it took is looked at when it would have been full.
                later = {node for when, _, node in which._ages if when > self.now}
                idle = [node for node in idle if node not in later]
            assert len(idle) <= most

    @rule(
        tier=st.integers(0, 2),
        later=st.sampled_from([0.5, 1.0, 3.0]),
        tenant=tenants,
        model=models,
        whole=st.booleans(),
    )
    def pause(self, tier: int, later: float, tenant: str, model: str, whole: bool) -> None:
        self.resized = True  # what is kept is loosened likewise
        key = None if whole else (tenant, model, None)[tier]
        self.ledger.pause(tier, self.now + later, key)
        self.model.pause((tier, key), self.now + later)

    @precondition(lambda self: self.ledger.paused)
    @rule()
    def end_pauses(self) -> None:
        self.assert_same(self.ledger.end_pauses(self.now), self.model.end_pauses(self.now))

    @precondition(lambda self: len(self.keys) > 25)
    @rule(every=st.integers(1, 3))
    def cancel_many(self, every: int) -> None:
        """As an object does that is closed."""
        keys = self.keys[::every]
        granted = self.ledger.cancel_all(keys, self.now)
        self.assert_same(granted, self.model.cancel_all(keys, self.now))

    @precondition(lambda self: len(self.keys) > 10)
    @rule(number=st.integers(0, 5))
    def close_and_reopen(self, number: int) -> None:
        expected = [request.key for request in self.model.waiting]
        assert [claim.key for claim in self.ledger.close(self.now)] == expected
        check(self.ledger, self.now, resized=self.resized)
        assert self.model.cancel_all(expected, self.now) == []
        with pytest.raises(SemaphoreClosed):
            self.ledger.request(claim_of("newcomer", None, (1, 1, 1)), ("a", "m", None), self.now)
        key = self.some_key(number)
        assert self.ledger.release(key, self.now) == self.model.release(key, self.now) == []
        self.ledger.reopen()

    # ---------------------------------------------------------- always the same

    @invariant()
    def the_invariants_hold(self) -> None:
        if not self.is_late:
            check(self.ledger, self.now, resized=self.resized)

    @invariant()
    def both_say_the_same(self) -> None:
        ledger, model = self.ledger, self.model
        numbers = {key: [*claim.numbers] for key, claim in ledger.holders.items()}
        assert numbers == {request.key: request.numbers for request in model.holding}
        assert all(claim.slot_number == numbers[key][0] for key, claim in ledger.holders.items())
        for tier in ledger.tiers:
            for key, node in tier.nodes.items():
                if isinstance(node, RateNode):
                    node.refill(self.now)
                    assert Fraction(node.level, node.rate.unit) == model.level((tier.index, key))
        assert list(ledger.waiting) == [request.key for request in model.waiting]
        if ledger.refills is None:
            assert ledger.next_deadline() == model.next_deadline()
        elif not self.is_late:  # it may look too early at a bucket that others took from
            assert ledger.next_deadline() <= model.next_deadline()
        kept = {
            (tier.index, key)
            for tier in ledger.tiers
            for key, node in tier.nodes.items()
            if node.kept_for is not None
        }
        assert kept == {node for request in model.waiting for node in request.keeps}

    @invariant()
    def nobody_waits_who_fits(self) -> None:
        model = self.model
        assert self.is_late or not [head for head in model.heads() if model.lacks(head) is None]


class FewLooks(PathsAgainstModel):
    """The same when a call may hardly do anything: what is left over comes to the same."""

    looks = 1


class RatesAgainstModel(PathsAgainstModel):
    """The same with rates among the tiers, of which parts of a second are enough to wait for."""

    @initialize(limits=st.permutations([0, 1, 2]), some=st.tuples(rates, values | rates, values))
    def begin(self, limits: list[int], some: tuple[int | Rate, int | Rate, int | Rate]) -> None:
        values = [some[index] for index in limits]
        self.ledger = PathLedger(values)
        self.model = PathModel(values, PATIENCE, self.now)

    @rule(later=st.sampled_from([1 / 8, 0.25, 0.5]))
    def let_time_pass(self, later: float) -> None:
        self.now += later
        self.model.now = in_microseconds(self.now)
        self.is_late = True  # until somebody calls

    @rule()
    def wait_for_time_alone(self) -> None:
        """Go to the very moment for which the ledger would have its alarm set."""
        when = self.ledger.next_deadline()
        if when < 200.0 + self.now:
            self.now = max(when, self.now)
            self.expire(0.0)

    @rule(tenant=tenants, model=models, needs=perhaps_several)
    def take_at_once(self, tenant: str, model: str, needs: Needs) -> None:
        """The short way does what the long one does, or nothing."""
        key, path = self.new_key(), (tenant, model, None)
        needs = self.needs(needs)
        claim = claim_of(key, None, needs)
        if self.ledger.take_at_once(claim, path, self.now):
            assert self.model.serve(self.now) == []
            assert self.model.try_request(Request(key, path, None, needs), self.now)

    @precondition(lambda self: self.model.holding)
    @rule(number=which)
    def give_at_once(self, number: int) -> None:
        key = self.model.holding[number % len(self.model.holding)].key
        claim = self.ledger.holders[key]
        if self.ledger.give_at_once(claim, self.now):
            del self.ledger.holders[key]
            assert self.model.release(key, self.now) == []

    @precondition(lambda self: self.keys)
    @rule(number=which, actual=st.sampled_from([0, 0, 1, 2, 5]))
    def correct(self, number: int, actual: int) -> None:
        key = self.some_key(number)
        tiers = [tier.index for tier in self.ledger.tiers if isinstance(tier.value, Rate)]
        costs = dict.fromkeys(tiers[:1], actual)
        expected = self.model.correct(key, costs, self.now)
        if expected is None:
            with pytest.raises(LookupError):
                self.ledger.charge(key, costs, self.now)
        else:
            self.assert_same(self.ledger.charge(key, costs, self.now), expected)

    @rule()
    def after_a_minute(self) -> None:
        self.now += 61.0
        self.expire(0.0)


class FairAgainstModel(PathsAgainstModel):
    """The same where the keys of a tier take turns, with weights that are not exact in binary."""

    tier = 0

    @initialize(limits=st.tuples(values, values, values), fair_by=st.sampled_from([0, 0, 1]))
    def begin(self, limits: tuple[int | Rate, ...], fair_by: int) -> None:
        self.tier = fair_by
        self.ledger = PathLedger(limits, fair_by)
        self.model = PathModel(limits, PATIENCE, self.now, fair_by)

    def weight_of(self, path: tuple[Hashable, ...]) -> float:
        return {"a": 1.0, "b": 3.0, "c": 0.7, "x": 2.0, "y": 1 / 3}[str(path[self.tier])]

    @invariant()
    def both_have_the_same_tags(self) -> None:
        fair, model = self.ledger.queue.fair, self.model
        assert fair is not None
        assert fair.time == model.time
        for key, share in fair.shares.items():
            assert share.tag == model.tags[key]


class FairWithRatesAgainstModel(RatesAgainstModel):
    """And with rates, one of which may be what counts."""

    @initialize(
        limits=st.permutations([0, 1, 2]),
        some=st.tuples(rates, values | rates, values),
        counts=st.booleans(),
    )
    def begin(
        self, limits: list[int], some: tuple[int | Rate, int | Rate, int | Rate], counts: bool
    ) -> None:
        values = [some[index] for index in limits]
        cost = limits.index(0) if counts else None
        self.ledger = PathLedger(values, 0, cost)
        self.model = PathModel(values, PATIENCE, self.now, 0, cost)

    weight_of = FairAgainstModel.weight_of
    tier = 0


budget = examples(15, stateful_step_count=50)
PathsAgainstModel.TestCase.settings = budget
FewLooks.TestCase.settings = examples(12, stateful_step_count=50)
RatesAgainstModel.TestCase.settings = budget


FairAgainstModel.TestCase.settings = budget
FairWithRatesAgainstModel.TestCase.settings = examples(12, stateful_step_count=50)


class TestPathsAgainstModel(PathsAgainstModel.TestCase):
    pass


class TestPathsWithFewLooksAgainstModel(FewLooks.TestCase):
    pass


class TestRatesAgainstModel(RatesAgainstModel.TestCase):
    pass


class TestFairAgainstModel(FairAgainstModel.TestCase):
    pass


class TestFairWithRatesAgainstModel(FairWithRatesAgainstModel.TestCase):
    pass
