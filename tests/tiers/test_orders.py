"""The rules of atomic paths, in every order in which several users can take their steps.

Each user stops at a checkpoint between its steps; explore tries all orders, and
after every step the invariants are checked. Verbs of the ledger are one step,
since they run under a lock.
"""

from __future__ import annotations

from tests.ledger.invariants import check
from tests.ledger.path_model import PathModel, Request

from slotwise._ledger import path_queue
from slotwise._ledger.idle_nodes import forget_idle
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.path_queue import PathQueue
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.slots import QUICK_LANE
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


def test_a_ledger_with_a_fault_is_caught(monkeypatch):
    monkeypatch.setattr(PathQueue, "serve", lambda self, now, looks=None: [])
    result = explored(
        (1, 1),
        lambda world: user(world, "alice", "alice", None),
        lambda world: user(world, "bob", "bob", None),
    )
    assert not result.ok
    assert isinstance(result.failure.error, AssertionError)
