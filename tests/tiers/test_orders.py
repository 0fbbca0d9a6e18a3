"""The rules of atomic paths, in every order in which several users can take their steps.

Each user stops at a checkpoint between its steps; explore tries all orders, and
after every step the invariants are checked. Verbs of the ledger are one step,
since they run under a lock; the quick lane has none, so each of its operations
is a step of its own.
"""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from tests._inside import give_number
from tests.ledger.invariants import check
from tests.ledger.path_model import PathModel, Request

from slotwise._ledger import path_queue
from slotwise._ledger.idle_nodes import forget_idle
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.path_queue import PathQueue
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.slots import QUICK_LANE
from slotwise._ledger.tier_nodes import TierNodes
from slotwise.effects import Checkpoint, Gather, do, explore


class World:
    """A ledger and its model, driven alike.

    What they are after a number of calls is checked once, not in every order that begins so:
    ``calls`` has, for each call that came next, those that came after it.
    """

    def __init__(self, values, calls):
        self.calls = calls
        self.ledger = PathLedger(values)
        self.model = PathModel(values, path_queue.PATIENCE)
        self.granted = []

    def note(self, granted, expected):
        assert [claim.key for claim in granted] == expected
        self.granted += expected

    def request(self, key, path):
        self.calls = self.calls.setdefault(("request", key), {})
        expected = self.model.request(Request(key, path), 0.0, None)
        self.note(self.ledger.request(PathClaim(key), path), expected)

    def release(self, key):
        self.calls = self.calls.setdefault(("release", key), {})
        self.note(self.ledger.release(key), self.model.release(key, 0.0))

    def cancel(self, key):
        self.calls = self.calls.setdefault(("cancel", key), {})
        self.note(self.ledger.cancel(key), self.model.cancel(key, 0.0))

    def forget_idle(self):
        self.calls = self.calls.setdefault("forget_idle", {})
        forget_idle(self.ledger, 0, 0.0, 0.0, 0)

    def check(self):
        if "checked" in self.calls:
            return
        check(self.ledger)
        assert set(self.ledger.holders) == {request.key for request in self.model.holding}
        assert list(self.ledger.waiting) == [request.key for request in self.model.waiting]
        assert len(set(self.granted)) == len(self.granted), "granted twice"
        self.calls["checked"] = True


@do
def user(world, key, *path, leaves="release"):
    world.request(key, path)
    yield Checkpoint()
    if leaves == "cancel":
        world.cancel(key)
        yield Checkpoint()
    world.release(key)  # a no-op for who does not hold
    yield Checkpoint()
    world.cancel(key)  # a no-op for who does not wait
    world.release(key)


@do
def cleaner(world, times=2):
    for _ in range(times):
        world.forget_idle()
        yield Checkpoint()


def explored(values, *actors, max_schedules=20_000):
    calls = {}
    world = World(values, calls)

    def make():
        world.__init__(values, calls)

        @do
        def program():
            yield Gather(*[actor(world) for actor in actors])
            assert not world.ledger.holders
            assert not world.ledger.waiting
            assert not world.ledger.unfinished
            assert world.ledger.attention is not QUICK_LANE

        return program()

    return explore(make, invariant=world.check, max_schedules=max_schedules)


def test_two_users_and_a_second_upload_in_every_order():
    result = explored(
        (1, 1),
        lambda world: user(world, "alice", "alice", None),
        lambda world: user(world, "alice 2", "alice", None),
        lambda world: user(world, "bob", "bob", None),
    )
    assert result.ok, result.failure
    assert result.exhaustive


def test_cancels_and_the_clean_up_in_every_order():
    result = explored(
        (1, 1),
        lambda world: user(world, "alice", "alice", None),
        lambda world: user(world, "bob", "bob", None, leaves="cancel"),
        cleaner,
    )
    assert result.ok, result.failure
    assert result.exhaustive


def test_paths_that_cross_in_every_order_while_slots_are_kept(monkeypatch):
    monkeypatch.setattr(path_queue, "PATIENCE", 0)
    result = explored(
        (1, 1),
        lambda world: user(world, "one", "a", "x"),
        lambda world: user(world, "two", "b", "y"),
        lambda world: user(world, "both", "a", "y"),
        max_schedules=5_000,
    )
    assert result.ok, result.failure


# ---------------------------------------------------------------- the quick lane


class QuickWorld:
    """A ledger whose quick lane is open, and who is inside by what they think."""

    def __init__(self, value):
        self.ledger = PathLedger((1, value))
        self.inside = []
        # Every node has been used once, so that its slot can be taken quickly.
        self.ledger.request(PathClaim("before"), ("a", None))
        self.ledger.release("before")

    def check(self):
        waited = [(claim.nodes[0].key, key) for key, claim in self.ledger.holders.items()]
        users = [name for name, _ in {*self.inside, *waited}]
        assert len(users) == len(set(users)), "two uploads of one user"
        assert len(users) <= self.ledger.tiers[1].value, "too many uploads"


@do
def quick_user(world, key, path):
    """What the quick lane does, a step at a time; see `_ledger.paths`."""
    ledger = world.ledger
    claim = PathClaim(key)
    taken, number = [], 0
    quick = not ledger.attention
    yield Checkpoint()
    if quick:
        for table, part in zip(ledger.tables, path, strict=True):
            node = table.get(part)
            yield Checkpoint()  # between the look-up and the taking
            try:
                number = heappop(node.free) if node is not None else [].pop()
            except IndexError:
                for other in taken:
                    heappush(other.free, 1)
                    yield Checkpoint()
                if taken and ledger.attention:
                    ledger.look_after(taken)
                    ledger.serve()
                quick = False
                break
            taken.append(node)
            yield Checkpoint()
    if quick:
        claim.nodes = taken
        give_number(claim, number)
        ledger.holders[key] = claim
    else:
        ledger.request(claim, path)
        if key not in ledger.holders:
            return  # it waits; who serves it is seen at the end
    world.inside.append((path[0], key))
    yield Checkpoint()
    world.inside.remove((path[0], key))
    claim = ledger.holders.pop(key)
    if ledger.attention:
        ledger.give(claim, 0.0)
        return
    yield Checkpoint()
    for node in claim.nodes:
        heappush(node.free, claim.slot_number)
        yield Checkpoint()
    if ledger.attention:
        ledger.look_after(claim.nodes)
        ledger.serve()


@do
def quick_cleaner(world):
    forget_idle(world.ledger, 0, 0.0, 0.0, 0)
    yield Checkpoint()
    forget_idle(world.ledger, 0, 0.0, 0.0, 0)


def explored_quickly(value, *actors, max_schedules=6_000, preemptions=3):
    world = QuickWorld(value)

    def make():
        world.__init__(value)

        @do
        def program():
            yield Gather(*[actor(world) for actor in actors])
            ledger = world.ledger
            while True:
                check(ledger)  # also that nobody waits who fits
                if not ledger.holders:
                    break
                assert len(ledger.holders) <= value
                ledger.release(next(iter(ledger.holders)))
            assert not ledger.waiting

        return program()

    return explore(
        make, invariant=world.check, preemptions=preemptions, max_schedules=max_schedules
    )


@pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")
@pytest.mark.parametrize("preemptions", [2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("value", [1, 2])
def test_the_quick_lane_and_the_clean_up_never_admit_two(value, preemptions):
    result = explored_quickly(
        value,
        lambda world: quick_user(world, "one", ("a", None)),
        lambda world: quick_user(world, "two", ("a", None)),
        quick_cleaner,
        preemptions=preemptions,
    )
    assert result.ok, result.failure


@pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")
def test_the_quick_lane_and_another_user_leave_nothing_behind():
    result = explored_quickly(
        1,
        lambda world: quick_user(world, "one", ("a", None)),
        lambda world: quick_user(world, "two", ("b", None)),
    )
    assert result.ok, result.failure


@pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")
def test_a_clean_up_that_forgets_without_taking_the_slots_away_is_caught(monkeypatch):
    def careless(self, now, before, too_many, looks):
        for node in [*self.nodes.values()]:
            if not node.in_use and not node.waiting:
                del self.nodes[node.key]
        return 0, False

    monkeypatch.setattr(TierNodes, "forget", careless)
    result = explored_quickly(
        2,
        lambda world: quick_user(world, "one", ("a", None)),
        lambda world: quick_user(world, "two", ("a", None)),
        quick_cleaner,
    )
    assert not result.ok


def test_a_ledger_with_a_fault_is_caught(monkeypatch):
    monkeypatch.setattr(PathQueue, "serve", lambda self, now, looks=None: [])
    result = explored(
        (1, 1),
        lambda world: user(world, "alice", "alice", None),
        lambda world: user(world, "bob", "bob", None),
    )
    assert not result.ok
    assert isinstance(result.failure.error, AssertionError)
