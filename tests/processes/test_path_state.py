"""Several readers and writers of one file of tiers, and a naive model, driven by the same verbs.

The "processes" here are journals of one test, as in `test_state`.
"""

from __future__ import annotations

import json
import os
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests._effort import examples
from tests.ledger.invariants import check
from tests.ledger.path_model import PathModel, Request
from tests.processes._copies import Copy
from tests.processes._inside import extent

from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._ledger import path_queue
from slotwise._ledger.rate_nodes import RateTier
from slotwise.processes import _file_journal as journals
from slotwise.processes import _state as states
from slotwise.processes._claims import Request as Wanted
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._snapshots import write_value
from slotwise.processes._state import State

tenants = st.sampled_from(["a", "b", "ü"])
models = st.sampled_from(["x", "y"])
values = st.sampled_from([0, 1, 1, 2, 2, 3])
perhaps_several = st.none() | st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 3)
rates = st.sampled_from(
    [
        Rate(1, per=1, burst=1),
        Rate(2, per=1, burst=3),
        Rate(4, per=0.5, burst=3),
        Rate(3, per=2, burst=4),
    ]
)
head_starts = st.sampled_from([0, 0, 0, 1, 400_000, -3_000_000])  # in microseconds
perhaps_seconds = st.sampled_from([None, None, None, 1.0, 2.0, 5.0])
which = st.integers(0, 30)
actors = st.integers(0, 2)

NAMES = "tenant", "model", "all"

PATIENCE = 1  # so little that slots are kept all the time
SNAPSHOT_AFTER = 600  # bytes of records: few, so that each run has several snapshots


class TiersFileAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._usual = journals._COMPACT_AFTER, path_queue.PATIENCE, path_queue.LOOKS
        self._few_nodes, states._FEW_NODES = states._FEW_NODES, 1
        journals._COMPACT_AFTER, path_queue.PATIENCE, path_queue.LOOKS = SNAPSHOT_AFTER, PATIENCE, 2
        directory = OpenDirectory(Path(self._directory.name))
        self.processes = [Copy(directory, "t.tiers", liveness_byte) for liveness_byte in (1, 2, 3)]
        self.now = 100.0
        self.wall_us = 1_000_000
        self.fence = 0
        self.ids: list[str] = []
        self.resized = self.closed = False

    def teardown(self) -> None:
        journals._COMPACT_AFTER, path_queue.PATIENCE, path_queue.LOOKS = self._usual
        states._FEW_NODES = self._few_nodes
        for process in self.processes:
            process.file.close()
        self.processes[0].file.directory.close()
        self._directory.cleanup()

    def needs(self, needs: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return needs

    @initialize(limits=st.tuples(values, values, values), by_key=st.booleans())
    def begin(self, limits: tuple[int, int, int], by_key: bool) -> None:
        """With ``by_key`` the value of a tenant comes with every request."""
        self.by_key = limits[0] if by_key else None
        specs = [
            TierSpec("tenant", 0 if by_key else limits[0], keyed=True, by_key=by_key),
            TierSpec("model", limits[1], keyed=True),
            TierSpec("all", limits[2], keyed=False),
        ]
        self.processes[0].create(State("t", specs, "boot"))
        self.model = PathModel(limits, PATIENCE)

    # ----------------------------------------------------------- helpers

    def some_id(self, number: int) -> str:
        return self.ids[-1 - number % len(self.ids)] if self.ids else "p1-0"

    def do(self, actor: int, verb: str, *args: Any) -> list[tuple[str, str]]:
        """Let one process make a change; return the events, with the ids."""
        process = self.processes[actor]
        process.catch_up()
        events = process.write([verb, self.now, self.wall_us, *args])
        for word, claim in events:
            if word == "granted":
                assert claim.token > self.fence, "tokens grow with every grant"
                self.fence = claim.token
        return [(word, str(claim.key)) for word, claim in events]

    # -------------------------------------------------------------- rules

    @rule(
        actor=actors,
        crowd=st.lists(
            st.tuples(tenants, models, perhaps_several, head_starts), min_size=1, max_size=4
        ),
        ttl=perhaps_seconds,
        wait=perhaps_seconds,
    )
    def request(self, actor: int, crowd: list[Any], ttl: float | None, wait: float | None) -> None:
        if self.closed:
            return  # refused before anything is written
        for tenant, model, needs, head_start in crowd:
            key = f"p{actor + 1:x}-{len(self.ids)}"
            path = (tenant, model, None)
            needs = self.needs(needs)
            request = Request(key, path, ttl, needs, head_start=head_start)
            if self.model.can_never_fit(request):
                continue  # refused as well
            until = None if wait is None else self.now + wait
            told = () if self.by_key is None else ((0, self.by_key),)
            self.ids.append(key)
            wanted = Wanted(path, needs, told, head_start)
            granted = self.model.request(request, self.now, until)
            args = (key, wanted.written, ttl, until, 1000 + actor, None)
            assert self.do(actor, "request", *args) == [("granted", each) for each in granted]

    @rule(actor=actors, number=which, verb=st.sampled_from(["release", "kick"]))
    def release(self, actor: int, number: int, verb: str) -> None:
        holding = self.model.holding
        key = str(holding[number % len(holding)].key) if holding else self.some_id(number)
        ended = [(verb.removesuffix("e") + "ed", key)] if holding else []
        granted = self.model.release(key, self.now)
        assert self.do(actor, verb, key) == ended + [("granted", each) for each in granted]

    @rule(actor=actors, number=which)
    def withdraw(self, actor: int, number: int) -> None:
        key = self.some_id(number)
        held = key in [request.key for request in self.model.holding]
        waits = key in [request.key for request in self.model.waiting]
        granted = [*self.model.cancel(key, self.now), *self.model.release(key, self.now)]
        ended = [("cancelled", key)] if waits else [("released", key)] if held else []
        assert self.do(actor, "withdraw", key) == ended + [("granted", each) for each in granted]

    @rule(actor=actors, seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def advance_time(self, actor: int, seconds: float) -> None:
        self.now += seconds
        self.wall_us += int(seconds * 1e6)
        holders, waiters, granted = self.model.expire(self.now)
        happened = self.do(actor, "expire")
        ended = [("expired", key) for key in holders] + [("timed out", key) for key in waiters]
        assert sorted(happened[: len(ended)]) == sorted(ended)
        assert happened[len(ended) :] == [("granted", each) for each in granted]

    @rule(actor=actors, dead=actors)
    def drop_dead(self, actor: int, dead: int) -> None:
        owner = f"p{dead + 1:x}-"
        waiters = [r.key for r in self.model.waiting if str(r.key).startswith(owner)]
        holders = [r.key for r in self.model.holding if str(r.key).startswith(owner)]
        granted = self.model.cancel_all(waiters, self.now)
        for key in holders:
            granted += self.model.release(key, self.now)
        died = [("owner died", key) for key in (*waiters, *holders)]
        happened = self.do(actor, "drop dead", [f"p{dead + 1:x}"])
        assert happened[: len(died)] == died
        assert sorted(happened[len(died) :]) == sorted(("granted", each) for each in granted)
        # A bounded call may leave a grant to the next release, when lower numbers are free.
        state = cast("State", self.processes[actor].state)
        for request in self.model.holding:
            if request.key in granted:
                request.numbers = [*state.holders[request.key].numbers]

    @rule(actor=actors, tier=st.integers(0, 2), value=values, key=st.none() | tenants | models)
    def resize(self, actor: int, tier: int, value: int, key: str | None) -> None:
        if tier == 2:
            key = None
        if self.closed or (tier == 0 and key is None and self.by_key is not None):
            return  # refused before anything is written
        self.resized = True
        refused, granted = self.model.resize(tier, value, key, key is not None, self.now)
        happened = [("too many", each) for each in refused] + [("granted", g) for g in granted]
        assert self.do(actor, "resize", NAMES[tier], key, value) == happened

    @precondition(lambda self: not self.closed)
    @rule(actor=actors, likely=st.integers(0, 3))
    def close(self, actor: int, likely: int) -> None:
        if likely:
            return
        waiters = [request.key for request in self.model.waiting]
        self.model.cancel_all(waiters, self.now)
        self.closed = True
        assert self.do(actor, "close_everywhere", None, None, "why") == [
            ("closed", key) for key in waiters
        ]

    @precondition(lambda self: self.closed or self.model.pauses)
    @rule(actor=actors)
    def reopen(self, actor: int) -> None:
        self.closed = False
        granted = self.model.end_pauses(self.now)
        assert self.do(actor, "reopen", None, None) == [("granted", each) for each in granted]

    @precondition(lambda self: not self.closed)
    @rule(
        actor=actors,
        tier=st.integers(0, 2),
        seconds=st.sampled_from([0.5, 1.0, 4.0]),
        key=st.none() | tenants | models,
    )
    def pause(self, actor: int, tier: int, seconds: float, key: str | None) -> None:
        self.resized = True
        key = None if tier == 2 else key
        self.model.pause((tier, key), self.now + seconds)
        assert self.do(actor, "pause", NAMES[tier], key, seconds) == []

    @rule(actor=actors)
    def die_while_writing(self, actor: int) -> None:
        """What was written but not committed is ignored, and overwritten."""
        process = self.processes[actor]
        process.catch_up()
        os.pwrite(process.file.fd, b"\x40\0\0\0half a record", extent(process.journal)[1])

    @rule(actor=actors)
    def restart(self, actor: int) -> None:
        old = self.processes[actor]
        self.processes[actor] = Copy(old.file.directory, "t.tiers", actor + 1)
        old.file.close()

    # ---------------------------------------------------------- invariants

    @invariant()
    def all_who_look_see_the_same_and_the_model_too(self) -> None:
        seen = []
        for process in [*self.processes, Copy(self.processes[0].file.directory, "t.tiers", 4)]:
            process.catch_up()
            state = process.state
            assert isinstance(state, State)
            seen.append(json.dumps(state.snapshot()))
        process.file.close()
        # Not of one that goes on: checking refills buckets.
        check(State.restore(json.loads(seen[0])), self.now, resized=self.resized)
        assert seen[0] == seen[1] == seen[2] == seen[3]
        assert json.dumps(State.restore(json.loads(seen[0])).snapshot()) == seen[0]
        assert state.closed == self.closed
        model = self.model
        numbers = {key: [*claim.numbers] for key, claim in state.holders.items()}
        assert numbers == {request.key: request.numbers for request in model.holding}
        assert list(state.waiting) == [request.key for request in model.waiting]
        if state.has_rates:  # it may look too early at a bucket that others took from
            assert state.next_deadline() <= model.next_deadline()
        else:
            assert state.next_deadline() == model.next_deadline()
        for tier in state.tiers:
            nodes = [node for key, node in tier.nodes.items() if key is not None]
            if isinstance(tier, RateTier):
                for key, node in tier.nodes.items():
                    level = Fraction(node.level_at(self.now), node.rate.unit)
                    assert level == model.level((tier.index, key))
            else:
                idle = [node for node in nodes if not node.in_use and not node.waiting]
                assert len(idle) <= states._FEW_NODES, "idle keys are forgotten"
        claims = (*state.holders.values(), *state.waiting.values())
        owners: dict[str, int] = {}
        for claim in claims:
            owners[claim.owner] = owners.get(claim.owner, 0) + 1
        assert {owner: count for owner, (count, _) in state.owners.items()} == owners


class RatesFileAgainstModel(TiersFileAgainstModel):
    """The same with rates among the tiers, or with nothing but rates."""

    def needs(self, needs: tuple[int, ...] | None) -> tuple[int, ...]:
        return needs or (1, 1, 1)

    @initialize(
        limits=st.permutations([0, 1, 2]),
        some=st.tuples(rates, values | rates, values | rates),
    )
    def begin(self, limits: list[int], some: tuple[int | Rate, ...]) -> None:
        self.by_key = None
        values = [some[index] for index in limits]
        specs = [
            TierSpec("tenant", values[0], keyed=True),
            TierSpec("model", values[1], keyed=True),
            TierSpec("all", values[2], keyed=False),
        ]
        self.processes[0].create(State("t", specs, "boot"))
        self.model = PathModel(values, PATIENCE, self.now)

    def is_rate(self, tier: int) -> bool:
        return isinstance(self.model.values[tier], Rate)

    @rule(actor=actors, tier=st.integers(0, 2), value=values, key=st.none() | tenants | models)
    def resize(self, actor: int, tier: int, value: int, key: str | None) -> None:
        if not self.is_rate(tier):
            super().resize(actor, tier, value, key)

    @rule(actor=actors, tier=st.integers(0, 2), rate=rates, key=st.none() | tenants | models)
    def resize_rate(self, actor: int, tier: int, rate: Rate, key: str | None) -> None:
        if self.closed or not self.is_rate(tier):
            return
        key = None if tier == 2 else key
        self.resized = True
        refused, granted = self.model.resize(tier, rate, key, key is not None, self.now)
        happened = [("too many", each) for each in refused] + [("granted", g) for g in granted]
        assert self.do(actor, "resize", NAMES[tier], key, write_value(rate)) == happened

    @rule(actor=actors, seconds=st.sampled_from([1 / 8, 0.25, 0.5]))
    def let_time_pass(self, actor: int, seconds: float) -> None:
        """Until just then, or until what the alarm would be set for."""
        state = self.processes[actor].state
        assert isinstance(state, State)
        self.advance_time(actor, max(min(seconds, state.next_deadline() - self.now), 0.0))

    @rule(actor=actors, number=which, costs=st.tuples(*[st.integers(0, 5)] * 3))
    def charge(self, actor: int, number: int, costs: tuple[int, ...]) -> None:
        key = self.some_id(number)
        state = self.processes[actor].state
        assert isinstance(state, State)
        self.processes[actor].catch_up()
        actual = {tier: cost for tier, cost in enumerate(costs) if self.is_rate(tier)}
        granted = self.model.correct(key, actual, self.now)
        assert state.can_settle(key, self.now) is (granted is not None)
        if granted is not None:
            args = None, None, key, {NAMES[tier]: cost for tier, cost in actual.items()}
            assert self.do(actor, "settle", *args) == [("granted", each) for each in granted]

    @rule(actor=actors, tier=st.integers(0, 2), key=tenants | models)
    def fill(self, actor: int, tier: int, key: str | None) -> None:
        if self.is_rate(tier):
            key = None if tier == 2 else key
            granted = self.model.fill((tier, key), self.now)
            assert self.do(actor, "refill", NAMES[tier], key) == [
                ("granted", each) for each in granted
            ]

    @rule(actor=actors, number=which)
    def withdraw_undelivered(self, actor: int, number: int) -> None:
        key = self.some_id(number)
        held = key in [request.key for request in self.model.holding]
        waits = key in [request.key for request in self.model.waiting]
        undone = self.model.cancel if waits else self.model.undo_grant
        happened = [("granted", each) for each in undone(key, self.now)]
        ended = [("cancelled", key)] if waits else [("released", key)] if held else []
        assert self.do(actor, "withdraw", key, True) == ended + happened


TestTiersFileAgainstModel = TiersFileAgainstModel.TestCase
TestTiersFileAgainstModel.settings = examples(10, stateful_step_count=40)
TestRatesFileAgainstModel = RatesFileAgainstModel.TestCase
TestRatesFileAgainstModel.settings = examples(6, stateful_step_count=40)


def test_what_is_kept_for_an_overdue_request_is_known_from_a_snapshot(monkeypatch) -> None:
    monkeypatch.setattr(path_queue, "PATIENCE", 0)
    specs = [TierSpec("user", 1, keyed=True), TierSpec("model", 1, keyed=True)]
    state = State("t", specs, "boot")

    def granted(state: State, verb: str, key: str, *args: Any) -> list[str]:
        events = state.apply([verb, 1.0, 1, key, *args])
        return [str(claim.key) for word, claim in events if word == "granted"]

    def ask(state: State, key: str, user: str, model: str) -> list[str]:
        return granted(state, "request", key, [[user, model]], None, None, 1, None)

    assert ask(state, "p1-1", "a", "x") == ["p1-1"]
    assert ask(state, "p1-2", "b", "y") == ["p1-2"]
    assert ask(state, "p1-3", "a", "y") == []
    assert ask(state, "p1-4", "c", "z") == ["p1-4"], "it has passed the one that waits"
    assert granted(state, "release", "p1-1") == []
    for each in (State.restore(json.loads(json.dumps(state.snapshot()))), state):
        assert ask(each, "p1-5", "a", "q") == [], "the slot of a is kept"
        assert granted(each, "release", "p1-2") == ["p1-3"]
