"""The rules of atomic paths, one by one."""

from __future__ import annotations

import random

import pytest
from tests.ledger.invariants import check

from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._ledger import path_queue
from slotwise._ledger.path_fullness import fullness, path_stats
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.path_queue import PathQueue
from slotwise._ledger.paths import PathLedger


class Office:
    """A ledger, and who has been granted since one last looked."""

    def __init__(self, *values):
        self.ledger = PathLedger(values)
        self.numbers = 0

    def ask(self, *path, key=None):
        """Whether it is granted at once."""
        self.numbers += 1
        key = key or self.numbers
        return key in [claim.key for claim in self.ledger.request(PathClaim(key), path)]

    def let_pass(self, times, *wider):
        """Some come and are granted what nobody else wants."""
        for _ in range(times):
            assert self.ask("passer", "by", *wider, key="passer")
            self.release("passer")

    def release(self, key):
        return [claim.key for claim in self.ledger.release(key)]

    def kept(self, tier, key):
        kept_for = self.ledger.tiers[tier].nodes[key].kept_for
        return None if kept_for is None else next(iter(kept_for.waiters))


@pytest.mark.parametrize("seed", range(5))
def test_an_overdue_one_is_offered_slots_once_more_than_it_has_tiers_at_most(seed):
    """Tides of requests that between them never leave both of its nodes free at once."""
    office, chance = Office(1, 1), random.Random(seed)
    tides = [("a", "x"), ("a", "y"), ("b", "z"), ("c", "z")]
    paths_of = {}
    for n, path in enumerate(tides * 2):
        paths_of[f"start {n}"] = path
        office.ask(*path, key=f"start {n}")
    office.ask("a", "z", key="old")
    old, rounds, offered = office.ledger.waiting["old"], 0, 0
    while "old" in office.ledger.waiting:
        overdue = office.ledger.queue.is_overdue(old.ticket)
        at = old.group.parked_at.key
        key = chance.choice([key for key in office.ledger.holders if key in paths_of])
        path = paths_of.pop(key)
        served = office.release(key)
        is_for_older = any(each.startswith("start") and at in paths_of[each] for each in served)
        if overdue and at in path and not is_for_older:
            # It was offered this slot first. Once it may find that a narrower tier was taken
            # since it last had it; from then on it keeps what it finds, narrow to wide.
            offered += 1
            assert offered <= 1 + len(office.ledger.tiers)
        rounds += 1
        paths_of[f"next {rounds}"] = path
        office.ask(*path, key=f"next {rounds}")
    check(office.ledger)


def test_without_keeping_it_would_starve(monkeypatch):
    monkeypatch.setattr(PathQueue, "_keep", lambda self, group, narrower: None)
    with pytest.raises(AssertionError):
        test_an_overdue_one_is_offered_slots_once_more_than_it_has_tiers_at_most(seed=0)


def test_one_call_examines_a_bounded_number_of_heads():
    office = Office(1, 500)
    for n in range(500):
        office.ask(f"h{n}", None)
    for n in range(500):
        office.ask(f"w{n}", None)
    _, granted = office.ledger.resize(1, 1000)
    assert len(granted) == path_queue.LOOKS
    assert office.ledger.unfinished
    # Who comes meanwhile does not pass those who were there.
    assert not office.ask("newcomer", None, key="newcomer")
    while office.ledger.unfinished:
        granted += office.ledger.serve()
    assert len(office.ledger.holders) == 1000
    check(office.ledger)


@pytest.mark.parametrize("older", [True, False])
def test_those_who_gave_up_waiting_leave_nothing_behind(older):
    office = Office(1, 2)
    office.ask("held", None)
    if older:  # it stays at the top, and all that follows comes and goes below it
        office.ask("held", None)
    office.ask("other", None)
    for n in range(5000):
        assert not office.ask(f"user-{n}", None, key=f"wait-{n}")
        office.ledger.cancel(f"wait-{n}")
    nodes = [node for tier in office.ledger.tiers for node in tier.nodes.values()]
    assert sum(len(node.parked or ()) for node in nodes) < 100
    assert not office.ledger.unfinished
    check(office.ledger)


def test_a_clock_that_is_set_back_costs_whoever_waits_for_a_rate_one_refill():
    ledger = PathLedger([Rate(1, per=60)])

    def ask(key, now):
        return ledger.request(PathClaim(key, (1,)), (None,), now)

    assert ask(1, 10_000)
    assert not ask(2, 10_030)
    assert ledger.next_deadline() == 10_060
    assert ledger.serve(100) == []
    assert 100 < ledger.next_deadline() <= 160
    assert [claim.key for claim in ledger.serve(160)] == [2]
    assert not ask(3, 20)
    assert 20 < ledger.next_deadline() <= 80
    assert [claim.key for claim in ledger.serve(80)] == [3]


def test_to_say_what_is_full_changes_nothing():
    """In memory it is said without the lock, while others change the heaps of those who wait."""
    for fair in ((), (0,)):
        ledger = PathLedger([1, 1], *fair)
        for number in range(6):
            ledger.request(PathClaim(number), (f"key {number % 3}", None), float(number))
        for number in (1, 2, 4):
            ledger.cancel(number, 6.0)  # which leaves stale entries in the heaps
        nodes = [node for tier in ledger.tiers for node in tier.nodes.values()]
        heaps = [getattr(node.parked, "_heap", node.parked) for node in nodes]
        before = [None if heap is None else [*heap] for heap in heaps]
        specs = [TierSpec("user", 1, keyed=True), TierSpec("all", 1, keyed=False)]
        for key in ("key 0", "key 1", "new"):
            assert fullness(ledger, specs, (key, None), None, 7.0)
            assert path_stats(ledger, (key, None), 7.0)[1].active == 1
        assert [None if heap is None else [*heap] for heap in heaps] == before
