"""Adaptive values between processes: every process that applies the records finds the same."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import _fresh_processes
from tests._inside import backend_of
from tests.ledger.invariants import check

import slotwise
from slotwise import Adaptive, Errors, Latency, ProcessSemaphore, Tier, Tiers
from slotwise._core.paths import TierSpec
from slotwise._wait import clock
from slotwise.errors import UnknownSemaphore
from slotwise.processes._state import State

ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 12))]


class Clocks:
    """The two clocks of records."""

    def __init__(self) -> None:
        self.now, self.wall_us = 1000.0, 1_700_000_000_000_000

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall_us += round(seconds * 1_000_000)


def again(state: Any) -> Any:
    """What another process reads in the file."""
    return type(state).restore(json.loads(json.dumps(state.snapshot())))


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_reads_the_file_of_tiers_has_the_same_values(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotwise.processes._state._KEPT_KEYS", 3)
    dice = random.Random(seed)
    narrow = Adaptive(3, 1, 8, algorithm=dice.choice([Errors(), Latency(0.1, 5)]))
    wide = Adaptive(8, 2, 20, algorithm=dice.choice([Errors(), Latency(0.1, 5)]))
    specs = [
        TierSpec("user", 3, True, adaptive=narrow, rules=narrow.written),
        TierSpec("some", 7, False),
        TierSpec("all", 8, False, adaptive=wide, rules=wide.written),
    ]
    states: list[Any] = [State("s", specs, "boot") for _ in range(2)]
    clocks, ids, moved = Clocks(), iter(range(10**6)), set()

    def do(*record: Any) -> None:
        verb, *args = record
        line = json.loads(json.dumps([verb, clocks.now, clocks.wall_us, *args]))
        for state in states:
            state.apply(line)

    for _ in range(1200):
        clocks.pass_time(dice.choice([0.0, 0.001, 0.01, 0.05]))
        state = states[0]
        holders = [*state.holders]
        if len(state.waiting) < 5 and dice.random() < 0.5:
            key = dice.choice("aaabcdefgh")
            path = [[key, None, None], None, [], 0, 1.0]
            do("request", f"p1-{next(ids)}", path, dice.choice([None, 0.3]), None, 5, None)
        elif holders and dice.random() < 0.9:
            ending = [dice.choice(["ok"] * 20 + ["dropped", "ignored"])]
            ending += [dice.choice([None, 30_000, 50_000 + len(holders) * 10_000]), 0]
            do("release", dice.choice(holders), *ending)
        else:
            verb = dice.choice(["expire", "kick", "freeze", "thaw", "resize"])
            if dice.random() < 0.1:
                do(
                    "pause",
                    *dice.choice([("user", "a", 0.05), ("all", None, 0.05)]),
                )
            key = dice.choice([None, "a", "b", "x"])
            if verb == "kick" and holders:
                do("kick", dice.choice(holders))
            elif verb == "freeze" and dice.random() < 0.2:
                do("freeze", "user", key, dice.choice([None, 2, 5]))
            elif verb == "resize" and dice.random() < 0.2:
                do("resize", "all", None, dice.choice([5, 9]))
            elif verb == "thaw":
                do("thaw", "user", key)
                do("thaw", "all", None)
            elif verb == "expire":
                do("expire")
        moved.update(
            (tier.index, node.value) for tier in state.tiers for node in tier.nodes.values()
        )
        if dice.random() < 0.05:
            states[1] = again(states[0])
        if dice.random() < 0.05:
            check(states[0], resized=True)
        for tier in states[0].tiers:
            for node in tier.nodes.values():
                assert node.adaptation is None or node.value == node.adaptation.limit
    assert states[0].snapshot() == states[1].snapshot()
    assert len(moved) > 5
    frozen = len(states[0].tiers[0].frozen_keys)
    busy = sum(node.in_use + node.waiting > 0 for node in states[0].tiers[0].nodes.values())
    assert len(states[0].tiers[0].nodes) <= 3 + frozen + busy + 1


def test_processes_share_the_value_and_what_moved_it(tmp_path: Path) -> None:
    url = f"process://{tmp_path}/slots"
    limit = slotwise.semaphore("shared", ERRORS, url)
    program = (
        "import sys, slotwise\n"
        "from slotwise import Adaptive, Errors\n"
        "rules = Adaptive(10, 2, 20, algorithm=Errors())\n"
        "limit = slotwise.semaphore('shared', rules, sys.argv[1])\n"
        "with limit.cm() as acquired:\n"
        "    acquired.dropped()\n"
        "print(limit.value)\n"
        "held = limit.acquire_sync()\n"  # it dies with it
    )
    for expected in ("7", "4"):
        command = [sys.executable, "-c", program, url]
        ran = _fresh_processes.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert ran.stdout.strip() == expected
    assert limit.stats_sync().max_slots == 4
    assert limit.stats_sync().acquired_slots == 0
    assert [(each.old, each.new) for each in limit.changes_sync()] == [(10, 7), (7, 4)]


def test_one_that_is_found_by_its_name_counts_too(tmp_path: Path) -> None:
    made = ProcessSemaphore(ERRORS, name="found", directory=tmp_path)
    with made.cm():
        found = ProcessSemaphore.existing("found", directory=tmp_path)
        with pytest.raises(TimeoutError), found.cm():
            raise TimeoutError
    assert made.value == found.value == 7
    found.freeze_sync(5)
    assert made.stats_sync().max_slots == 5
    assert made.resized
    fixed = ProcessSemaphore(3, name="fixed", directory=tmp_path)
    with fixed.cm(), pytest.raises(TypeError, match="has a fixed value"):
        ProcessSemaphore.existing("fixed", directory=tmp_path).freeze_sync()
    with pytest.raises(UnknownSemaphore):
        ProcessSemaphore.existing("nothing", directory=tmp_path)


def test_a_frozen_one_is_remembered_while_nobody_uses_it(tmp_path: Path) -> None:
    limit = ProcessSemaphore(ERRORS, name="kept", directory=tmp_path)
    limit.freeze_sync(4)
    state = backend_of(limit).state
    assert state is not None
    assert state.remembers(clock.now() + 10**6)
    limit.thaw_sync()
    now = clock.now()
    assert state.remembers(now + 3000), "what it has learnt"
    assert not state.remembers(now + 3700)
    tiers = Tiers(Tier("user", ERRORS, keyed=True), url=f"process://{tmp_path}", name="kept")
    tiers.freeze_sync("user", 4, "a")
    of_tiers = backend_of(tiers)
    assert of_tiers.state.remembers(clock.now() + 10**6)
    tiers.thaw_sync("user")
    assert of_tiers.state.remembers(clock.now() + 3000)
    assert not of_tiers.state.remembers(clock.now() + 3700)


def test_many_keys_come_and_go_and_the_file_stays_small(tmp_path: Path) -> None:
    url = f"process://{tmp_path}/slots"
    tiers = Tiers(Tier("user", ERRORS, keyed=True), url=url, name="many")
    for number in range(400):
        with tiers.cm(user=f"user {number}") as acquired:
            acquired.dropped()
    state = backend_of(tiers).state
    assert len(state.tiers[0].nodes) == 100
    assert tiers.changes_sync("user", "user 399")
    assert not tiers.changes_sync("user", "user 1")
    assert max(each.stat().st_size for each in (tmp_path / "slots").iterdir()) < 400_000
