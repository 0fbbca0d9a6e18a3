"""Several readers and writers of one file, and a naive model, driven by the same verbs.

The "processes" here are journals of one test: each has read its own part of the
file and keeps its own copy of the state. Real ones are in the other files.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests._effort import examples
from tests.ledger.invariants import check
from tests.ledger.model import Entry, Model
from tests.processes._copies import Copy
from tests.processes._inside import extent

from slotwise._core.paths import semaphore_spec
from slotwise.errors import SemaphoreClosed
from slotwise.processes import _file_journal as journals
from slotwise.processes._claims import Request
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._operations import _is_free
from slotwise.processes._state import State

slots = st.sampled_from([1, 1, 1, 2, 3, 4])
perhaps_seconds = st.none() | st.sampled_from([1.0, 2.0, 3.0, 5.0])
values = st.integers(1, 6)
which = st.integers(0, 30)
actors = st.integers(0, 2)

SNAPSHOT_AFTER = 400  # bytes of records: few, so that each run has several snapshots


class FileAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._usual = journals._COMPACT_AFTER
        journals._COMPACT_AFTER = SNAPSHOT_AFTER
        directory = OpenDirectory(Path(self._directory.name))
        self.processes = [Copy(directory, "s.slots", liveness_byte) for liveness_byte in (1, 2, 3)]
        self.processes[0].create(State("s", [semaphore_spec(3)], "boot"))
        self.model = Model(3)
        self.now = 100.0
        self.wall_us = 1_000_000
        self.fence = 0
        self.ids: list[str] = []
        self.resized = False

    def teardown(self) -> None:
        journals._COMPACT_AFTER = self._usual
        for process in self.processes:
            process.file.close()
        self.processes[0].file.directory.close()
        self._directory.cleanup()

    # ----------------------------------------------------------- helpers

    def some_id(self, number: int) -> str:
        return self.ids[-1 - number % len(self.ids)] if self.ids else "p1-0"

    def do(self, actor: int, verb: str, *args: Any) -> list[tuple[str, str]]:
        """Let one process make a change; return the events, with the ids."""
        process = self.processes[actor]
        process.catch_up()
        events = process.write([verb, self.now, self.wall_us, *args])
        for word, entry in events:
            if word == "granted":
                assert entry.token > self.fence, "tokens grow with every grant"
                assert entry.token >= self.wall_us
                self.fence = entry.token
        return [(word, str(entry.key)) for word, entry in events]

    # -------------------------------------------------------------- rules

    @rule(actor=actors, wanted=slots, ttl=perhaps_seconds, wait=perhaps_seconds)
    def request(self, actor: int, wanted: int, ttl: float | None, wait: float | None) -> None:
        key = f"p{actor + 1:x}-{len(self.ids)}"
        until = None if wait is None else self.now + wait
        args = (key, [[None], [wanted]], ttl, until, 1000 + actor, None)
        try:
            granted = self.model.request(Entry(key, wanted, ttl), self.now, until)
        except (ValueError, SemaphoreClosed) as refusal:
            with pytest.raises(type(refusal)):
                self.do(actor, "request", *args)
        else:
            self.ids.append(key)
            assert self.do(actor, "request", *args) == [("granted", each) for each in granted]

    @rule(actor=actors, number=which, verb=st.sampled_from(["release", "kick"]))
    def release(self, actor: int, number: int, verb: str) -> None:
        key = self.some_id(number)
        held = self.model.find(self.model.holding, key)
        granted = self.model.release(key, self.now)
        ended = [] if held is None else [(verb.removesuffix("e") + "ed", key)]
        assert self.do(actor, verb, key) == ended + [("granted", each) for each in granted]

    @rule(actor=actors, number=which)
    def withdraw(self, actor: int, number: int) -> None:
        key = self.some_id(number)
        held = self.model.find(self.model.holding, key)
        waits = self.model.find(self.model.waiting, key)
        granted = [*self.model.cancel(key, self.now), *self.model.release(key, self.now)]
        ended = [("cancelled", key)] if waits else [("released", key)] if held else []
        assert self.do(actor, "withdraw", key) == ended + [("granted", each) for each in granted]

    @rule(actor=actors, seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def advance_time(self, actor: int, seconds: float) -> None:
        self.now += seconds
        self.wall_us += int(seconds * 1e6)
        holders, waiters, granted = self.model.expire(self.now)
        happened = self.do(actor, "expire")
        assert sorted(happened[: len(holders)]) == sorted(("expired", str(k)) for k in holders)
        rest = happened[len(holders) :]
        assert sorted(rest[: len(waiters)]) == sorted(("timed out", str(k)) for k in waiters)
        assert rest[len(waiters) :] == [("granted", each) for each in granted]

    @rule(actor=actors, dead=actors)
    def drop_dead(self, actor: int, dead: int) -> None:
        owner = f"p{dead + 1:x}-"
        for entry in [e for e in self.model.waiting if str(e.key).startswith(owner)][::-1]:
            self.model.cancel(entry.key, self.now)
        for entry in [e for e in self.model.holding if str(e.key).startswith(owner)]:
            self.model.release(entry.key, self.now)
        happened = self.do(actor, "drop dead", [f"p{dead + 1:x}"])
        assert {key.startswith(owner) for word, key in happened if word == "owner died"} <= {True}
        assert {key.startswith(owner) for word, key in happened if word == "granted"} <= {False}

    @rule(actor=actors, value=values)
    def resize(self, actor: int, value: int) -> None:
        if self.model.closed:
            return  # refused before anything is written
        self.resized = True
        refused, granted = self.model.resize(value, self.now)
        happened = [("too many", each) for each in refused] + [("granted", g) for g in granted]
        assert self.do(actor, "resize", None, None, value) == happened

    @rule(actor=actors)
    def close(self, actor: int) -> None:
        refused = self.model.close()
        closed = [("closed", each) for each in refused]
        assert self.do(actor, "close_everywhere", None, None, f"at {self.now}") == closed

    @precondition(lambda self: self.model.closed or self.model.paused_until)
    @rule(actor=actors)
    def reopen(self, actor: int) -> None:
        granted = self.model.reopen(self.now)
        assert self.do(actor, "reopen", None, None) == [("granted", each) for each in granted]

    @precondition(lambda self: not self.model.closed)
    @rule(actor=actors, seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def pause(self, actor: int, seconds: float) -> None:
        self.model.pause(self.now + seconds)
        assert self.do(actor, "pause", None, None, seconds) == []

    @rule(actor=actors)
    def die_while_writing(self, actor: int) -> None:
        """What was written but not committed is ignored, and overwritten."""
        process = self.processes[actor]
        process.catch_up()
        os.pwrite(process.file.fd, b"\x40\0\0\0half a record", extent(process.journal)[1])

    @rule(actor=actors)
    def restart(self, actor: int) -> None:
        old = self.processes[actor]
        self.processes[actor] = Copy(old.file.directory, "s.slots", actor + 1)
        old.file.close()

    # ---------------------------------------------------------- invariants

    @invariant()
    def all_who_look_see_the_same_and_the_model_too(self) -> None:
        seen = []
        for process in [*self.processes, Copy(self.processes[0].file.directory, "s.slots", 4)]:
            process.catch_up()
            state = process.state
            assert state is not None
            seen.append(state.snapshot())
        process.file.close()
        check(State.restore(seen[0]), self.now, resized=self.resized)
        assert seen[0] == seen[1] == seen[2] == seen[3]
        assert State.restore(seen[0]).snapshot() == seen[0]
        assert state.fence == self.fence
        model = self.model
        assert [e.key for e in state.waiting.values()] == [e.key for e in model.waiting]
        held = {e.key: (e.numbers, e.expires_at) for e in state.holders.values()}
        assert held == {e.key: (tuple(e.numbers), e.deadline) for e in model.holding}
        node = state.tiers[0].nodes.get(None)
        in_use = 0 if node is None else node.in_use
        assert (state.value_at(), state.closed, in_use) == (
            model.value,
            model.closed,
            model.in_use,
        )
        owners: dict[str, int] = {}
        for entry in (*state.holders.values(), *state.waiting.values()):
            owners[entry.owner] = owners.get(entry.owner, 0) + 1
        assert {owner: count for owner, (count, _) in state.owners.items()} == owners
        declared = (semaphore_spec(state.value_at()),)
        assert state.accepts(declared)
        if not state.closed:  # who is said to get something at once does
            free = (
                model.value > model.in_use and not model.waiting and self.now >= model.paused_until
            )
            assert _is_free(state, Request((None,)), declared, self.now) is free


TestFileAgainstModel = FileAgainstModel.TestCase
TestFileAgainstModel.settings = examples(15, stateful_step_count=40)
