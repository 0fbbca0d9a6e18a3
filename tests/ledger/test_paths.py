"""The rules of atomic paths, one by one."""

from __future__ import annotations

import random

import pytest
from tests.ledger.invariants import check

from slotwise._core.rates import Rate
from slotwise._ledger import path_queue
from slotwise._ledger.idle_nodes import forget_idle
from slotwise._ledger.path_nodes import UNLIMITED, PathClaim
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


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(path_queue, "PATIENCE", 2)


def test_a_second_upload_of_alice_never_holds_up_bob():
    office = Office(1, 2)
    assert office.ask("alice", None, key="first")
    assert not office.ask("alice", None, key="second")
    for n in range(10 * path_queue.PATIENCE):  # it has long been overdue
        assert office.ask("bob", None, key=f"bob-{n}")
        assert office.release(f"bob-{n}") == []
    assert office.release("first") == ["second"]


def test_a_slot_goes_to_the_oldest_whose_user_is_free():
    office = Office(1, 1)
    office.ask("alice", None, key="alice 1")
    office.ask("alice", None, key="alice 2")
    office.ask("bob", None, key="bob")
    assert office.release("alice 1") == ["alice 2"]
    office.ask("alice", None, key="alice 3")
    assert office.release("alice 2") == ["bob"]
    assert office.release("bob") == ["alice 3"]


def test_requests_of_one_path_never_pass_each_other():
    office = Office(2, 2)
    for key in "abcd":
        office.ask("x", None, key=key)
    office.ledger.cancel("c")
    assert office.release("a") == ["d"]
    assert not office.ask("x", None, key="e")


def test_an_overdue_request_gets_its_slots_kept_from_narrow_to_wide(impatient):
    office = Office(1, 1, 3)
    office.ask("a", "p", None, key="1")
    office.ask("b", "x", None, key="2")
    office.ask("a", "x", None, key="old")
    office.let_pass(3, None)
    office.ledger.resize(2, 2)
    office.ask("c", "m", None, key="later 0")
    assert office.release("1") == ["later 0"]
    assert (office.kept(0, "a"), office.kept(1, "x")) == ("old", None)
    office.ledger.resize(2, 1)
    assert office.release("2") == []
    assert (office.kept(0, "a"), office.kept(1, "x")) == ("old", "old")
    assert office.release("later 0") == ["old"]
    assert (office.kept(0, "a"), office.kept(1, "x")) == (None, None)


def test_what_is_kept_counts_as_taken_and_is_used_by_its_keeper(impatient):
    office = Office(1, 1)
    office.ask("a", "x", key="1")
    office.ask("b", "y", key="2")
    office.ask("a", "y", key="old")  # lacks a
    office.let_pass(3)
    assert office.release("1") == []  # lacks y now, and a is kept
    assert office.kept(0, "a") == "old"
    assert not office.ask("a", "x", key="newcomer")
    assert office.release("2") == ["old"]
    assert office.kept(0, "a") is None
    assert office.release("old") == ["newcomer"]
    check(office.ledger)


def test_a_keeper_that_leaves_makes_room_at_once(impatient):
    office = Office(1, 1)
    office.ask("a", "x", key="1")
    office.ask("b", "y", key="2")
    office.ask("a", "y", key="old")
    office.let_pass(3)
    office.release("1")
    office.ask("a", "x", key="newcomer")
    assert [claim.key for claim in office.ledger.cancel("old")] == ["newcomer"]
    check(office.ledger)


def test_those_who_come_later_make_nobody_overdue_until_they_are_granted(impatient):
    office = Office(1, 1)
    office.ask("a", "x", key="1")
    office.ask("b", "y", key="2")
    office.ask("a", "y", key="old")
    for n in range(10):
        assert not office.ask("a", "y", key=f"behind it {n}")
    office.release("1")
    assert office.kept(0, "a") is None


def test_no_node_keeps_more_than_one_slot(impatient):
    office = Office(2, 1)
    for key in ("1", "2"):
        office.ask("a", key, key=key)
    for model in ("y", "z"):
        office.ask("b", model, key=f"holds {model}")
        office.ask("a", model, key=f"wants {model}")
    office.let_pass(3)
    office.release("1")
    office.release("2")
    assert office.kept(0, "a") == "wants y"
    assert office.ask("a", "q")  # the other slot is anybody's
    check(office.ledger)


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


def test_a_release_costs_the_same_however_many_wait(monkeypatch):
    looks = 0
    usual = PathQueue._examine

    def counted(self, *args):
        nonlocal looks
        looks += 1
        usual(self, *args)

    monkeypatch.setattr(PathQueue, "_examine", counted)
    office = Office(1, 100)
    for n in range(5000):
        office.ask(f"user-{n % 1000}", None, key=n)
    for n in range(1000):
        office.release(n)
    assert looks <= 3 * 1000


def test_no_limit_has_always_a_slot_and_counts():
    office = Office(0, 0)
    assert all(office.ask("a", None) for _ in range(50))
    node = office.ledger.tiers[0].nodes["a"]
    assert (node.in_use, node.value) == (50, UNLIMITED)
    check(office.ledger)


def test_the_longest_idle_are_forgotten_first_and_never_those_in_use():
    ledger = PathLedger((1, 0))
    for now, user in enumerate("abcd"):
        ledger.request(PathClaim(user), (user, None), now)
    for now, user in enumerate("cab", 10):
        ledger.release(user, now)
    assert forget_idle(ledger, 0, 20, 1000, 2) == (1, False)
    assert {*ledger.tiers[0].nodes} == {"a", "b", "d"}
    assert forget_idle(ledger, 0, 20, 9, None) == (1, False)
    assert {*ledger.tiers[0].nodes} == {"b", "d"}
    assert forget_idle(ledger, 0, 20, 0, 0) == (1, False)
    assert {*ledger.tiers[0].nodes} == {"d"}
    check(ledger)


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
