"""The ledger's own verbs, in every order in which several users can call them.

Each user is a task that stops at a checkpoint between its calls; explore tries
all orders, and after every step the ledger's invariants and a naive model of a
semaphore are checked.
"""

from __future__ import annotations

import pytest
from tests.ledger.invariants import check
from tests.ledger.one_node import Claim, Ledger

from slotwise._ledger.slots import QUICK_LANE
from slotwise.effects import Checkpoint, Gather, do, explore


class Model:
    """A semaphore as one would explain it: a list of holders and a list of waiters."""

    def __init__(self, value):
        self.value = value
        self.holders = []  # (key, slots)
        self.waiters = []  # (key, slots, deadline)

    def serve(self):
        while self.waiters:
            key, slots, _ = self.waiters[0]
            if sum(slots for _, slots in self.holders) + slots > self.value:
                return
            self.waiters.pop(0)
            self.holders.append((key, slots))

    def request(self, key, slots, deadline):
        self.waiters.append((key, slots, deadline))
        self.serve()

    def release(self, key):
        self.holders = [holder for holder in self.holders if holder[0] != key]
        self.serve()

    def cancel(self, key):
        self.waiters = [waiter for waiter in self.waiters if waiter[0] != key]
        self.serve()

    def expire(self, now):
        self.waiters = [w for w in self.waiters if w[2] is None or w[2] > now]
        self.serve()


class World:
    """A ledger and its model, driven alike.

    What they are after a number of calls is checked once, not in every order that begins so:
    ``calls`` has, for each call that came next, those that came after it.
    """

    def __init__(self, value, calls):
        self.calls = calls
        self.ledger = Ledger(value)
        self.model = Model(value)
        self.granted = []

    def request(self, key, slots=1, deadline=None):
        self.calls = self.calls.setdefault(("request", key), {})
        got = self.ledger.request(Claim(key, slots), 0.0, wait_until=deadline)
        self.granted += [claim.key for claim in got]
        self.model.request(key, slots, deadline)

    def release(self, key):
        self.calls = self.calls.setdefault(("release", key), {})
        self.granted += [claim.key for claim in self.ledger.release(key)]
        self.model.release(key)

    def cancel(self, key):
        self.calls = self.calls.setdefault(("cancel", key), {})
        self.granted += [claim.key for claim in self.ledger.cancel(key)]
        self.model.cancel(key)

    def expire(self, now):
        self.calls = self.calls.setdefault(("expire", now), {})
        holders, _, granted = self.ledger.expire(now)
        assert not holders
        self.granted += [claim.key for claim in granted]
        self.model.expire(now)

    def check(self):
        if "checked" in self.calls:
            return
        check(self.ledger)
        assert list(self.ledger.waiting) == [key for key, _, _ in self.model.waiters]
        assert set(self.ledger.holders) == {key for key, _ in self.model.holders}
        assert len(set(self.granted)) == len(self.granted), "granted twice"
        self.calls["checked"] = True


@do
def user(world, key, slots=1, deadline=None, leaves="release"):
    world.request(key, slots, deadline)
    yield Checkpoint()
    if leaves == "cancel":
        world.cancel(key)
        yield Checkpoint()
    world.release(key)  # a no-op for who does not hold
    yield Checkpoint()
    world.cancel(key)  # a no-op for who does not wait
    world.release(key)


@do
def brief_user(world, key, deadline=None, leaves="release"):
    """A user without the calls that change nothing; what those do, `user` shows."""
    world.request(key, deadline=deadline)
    yield Checkpoint()
    if leaves == "cancel":
        world.cancel(key)
        yield Checkpoint()
    world.release(key)
    world.cancel(key)


@do
def clock(world, now):
    world.expire(now)
    yield from ()


def explored(value, *actors, max_schedules=20_000):
    calls = {}
    world = World(value, calls)

    def make():
        world.__init__(value, calls)

        @do
        def program():
            yield Gather(*[actor(world) for actor in actors])
            assert world.ledger.in_use == 0, "a slot was lost"
            assert not world.ledger.waiting
            assert world.ledger.attention is not QUICK_LANE

        return program()

    return explore(make, invariant=world.check, max_schedules=max_schedules)


def users(*arguments):
    return [lambda world, a=a, k=k: user(world, *a, **k) for a, k in arguments]


def test_three_users_of_one_slot_in_every_order():
    result = explored(1, *users((("a"), {}), (("b"), {}), (("c"), {})))
    assert result.ok, result.failure
    assert result.exhaustive
    assert result.schedules == 1680  # 9! / (3! 3! 3!)


def test_cancels_of_waiters_and_holders_in_every_order():
    result = explored(
        1,
        *users((("a",), {"leaves": "cancel"}), (("b",), {"leaves": "cancel"})),
        lambda world: brief_user(world, "c"),
    )
    assert result.ok, result.failure
    assert result.exhaustive


def test_large_and_small_requests_in_every_order():
    result = explored(2, *users((("a", 2), {}), (("b", 1), {"leaves": "cancel"}), (("c", 1), {})))
    assert result.ok, result.failure
    assert result.exhaustive


@pytest.mark.parametrize("now", [1.0, 2.0])
def test_deadlines_and_expiry_in_every_order(now):
    result = explored(
        1,
        lambda world: brief_user(world, "a"),
        lambda world: brief_user(world, "b", deadline=1.0),
        lambda world: brief_user(world, "c", deadline=2.0, leaves="cancel"),
        lambda world: clock(world, now),
    )
    assert result.ok, result.failure
    assert result.exhaustive


def test_a_ledger_with_a_fault_is_caught(monkeypatch):
    def forgetful(self, key, now=0.0):
        """A cancel that does not serve those behind."""
        self.waiting.pop(key, None)
        return []

    monkeypatch.setattr(Ledger, "cancel", forgetful)
    result = explored(2, *users((("a", 1), {}), (("b", 2), {"leaves": "cancel"}), (("c", 1), {})))
    assert not result.ok
    assert isinstance(result.failure.error, AssertionError)


@pytest.mark.parametrize("preemptions", [0, 1, 2])
def test_few_preemptions_are_enough_to_keep_the_rules(preemptions):
    calls = {}
    world = World(2, calls)

    def make():
        world.__init__(2, calls)

        @do
        def program():
            keys = "abcde"
            yield Gather(*[user(world, key, 1 + i % 2) for i, key in enumerate(keys)])

        return program()

    result = explore(make, invariant=world.check, preemptions=preemptions, max_schedules=2000)
    assert result.ok, result.failure
