"""Programs made at random, against a naive model of semaphores and by their invariants."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests._effort import examples
from tests.effects._inside import ledger_of, left_by_ended_tasks, node_of, scheduler_of

from slotwise.effects import (
    AcquireSemaphore,
    Cancel,
    Checkpoint,
    CreateSemaphore,
    ReleaseSemaphore,
    Sleep,
    Spawn,
    TransferPermit,
    Try,
    TryAcquire,
    Wait,
    WithPermit,
    do,
    explore,
    run,
    run_async,
)
from slotwise.effects._permits import held_by
from slotwise.effects._semaphores import queue_of

# ----------------------------------------------------- scripts, and tasks that follow them

SEMAPHORES = (1, 2, 3)  # permits of each

actions = st.one_of(
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("sleep"), st.integers(0, 3)),
    st.tuples(st.just("acquire"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("try"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("release"), st.integers(0, 2)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("timed"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("bracket"), st.integers(0, 2)),
)
scripts = st.lists(st.lists(actions, max_size=8), min_size=1, max_size=5)


@do
def follower(world, script):
    """Follows its script; in the end it gives back all it holds."""
    held = Counter()
    try:
        for action, *arguments in script:
            if action == "checkpoint":
                yield Checkpoint()
            elif action == "sleep":
                yield Sleep(arguments[0] * world.second)
            elif action == "cancel":
                if arguments[0] < len(world.tasks):
                    yield Cancel(world.tasks[arguments[0]])
            elif action == "release":
                sem = world.semaphores[arguments[0]]
                if held[sem]:
                    world.note(sem, -1)
                    yield ReleaseSemaphore(sem)
                    held[sem] -= 1
            elif action == "bracket":
                sem = world.semaphores[arguments[0]]
                if not any(held.values()):  # who holds and waits may deadlock
                    yield WithPermit(sem, Checkpoint())
            else:
                sem = world.semaphores[arguments[0]]
                n = min(arguments[1], sem.permits)
                if action == "try":
                    got = yield TryAcquire(sem, n)
                elif any(held.values()):
                    continue
                elif action == "acquire":
                    yield AcquireSemaphore(sem, n)
                    got = True
                else:
                    outcome = yield Try(AcquireSemaphore(sem, n, timeout=world.second))
                    got = outcome.ok
                if got:
                    world.note(sem, n)
                    held[sem] += n
    finally:
        for sem, n in held.items():
            if n:
                world.note(sem, -n)
                yield ReleaseSemaphore(sem, n)
                held[sem] = 0


class World:
    """The semaphores of a program, and how many permits its tasks believe to hold."""

    def __init__(self, scripts, second=1.0):
        self.scripts = scripts
        self.second = second
        self.semaphores = []
        self.tasks = []
        self.taken = Counter()

    def note(self, sem, n):
        self.taken[sem] += n
        assert 0 <= self.taken[sem] <= sem.permits, "more holders than permits"

    @do
    def program(self):
        for permits in SEMAPHORES:
            self.semaphores.append((yield CreateSemaphore(permits)))
        for script in self.scripts:
            self.tasks.append((yield Spawn(follower(self, script))))
        for task in self.tasks:
            yield Try(Wait(task))

    def check(self):
        """Between any two steps: S1 and S2 of semaphores.py, and the ledger's I2."""
        for sem in self.semaphores:
            ledger, node = ledger_of(sem), node_of(sem)
            live = scheduler_of(sem).live
            assert sum(held_by(task, sem) for task in live) == node.in_use <= sem.permits
            assert not ledger.holders
            if ledger.waiting:
                head = next(iter(ledger.waiting.values()))
                assert node.in_use + head.slots > sem.permits

    def check_end(self):
        for sem in self.semaphores:
            assert node_of(sem).in_use == 0, "a permit was lost"
            assert queue_of(sem) == ()
            assert self.taken[sem] == 0
        assert all(task.done for task in self.tasks)


@examples(60)
@given(scripts, st.one_of(st.none(), st.integers(0, 1000)))
def test_programs_keep_the_invariants_under_run(scripts, seed):
    world = World(scripts)
    run(world.program(), seed=seed, trace=lambda *_: world.check(), max_steps=10_000)
    world.check_end()


@examples(15)
@given(scripts)
def test_programs_keep_the_invariants_under_run_async(scripts):
    world = World(scripts, second=0.0001)
    asyncio.run(run_async(world.program()))
    world.check_end()


@examples(10)
@given(st.lists(st.lists(actions, max_size=4), min_size=2, max_size=3))
def test_programs_keep_the_invariants_in_every_order(scripts):
    worlds = []

    def make():
        worlds.append(World(scripts))
        return worlds[-1].program()

    def invariant():
        worlds[-1].check()

    result = explore(make, invariant=invariant, max_schedules=100)
    assert result.ok, result.failure


@examples(25)
@given(scripts, st.integers(0, 1000))
def test_the_same_seed_gives_the_same_steps(scripts, seed):
    traces = []
    for _ in range(2):
        trace = []
        run(
            World(scripts).program(),
            seed=seed,
            trace=lambda step, task, effect, trace=trace: trace.append((task.name, type(effect))),
        )
        traces.append(trace)
    assert traces[0] == traces[1]


# --------------------------------------------------------------- the naive model


class Model:
    """One semaphore, as one would explain it; driven by what the trace sees."""

    def __init__(self, permits):
        self.permits = permits
        self.held = Counter()
        self.queue = []  # (task, n)
        self.unseen = {}  # granted from the queue, and the task has not run since

    def serve(self):
        while self.queue and sum(self.held.values()) + self.queue[0][1] <= self.permits:
            task, n = self.queue.pop(0)
            self.held[task] += n
            self.unseen[task] = n

    def acquire(self, task, n):
        self.queue.append((task, n))
        self.serve()
        if self.unseen.get(task) == n and not any(t is task for t, _ in self.queue):
            del self.unseen[task]  # granted at once: it goes on

    def release(self, task, n):
        self.held[task] -= n
        self.serve()

    def cancel(self, task):
        self.queue = [(t, n) for t, n in self.queue if t is not task]
        self.held[task] -= self.unseen.pop(task, 0)
        self.serve()


@do
def modelled(world, script):
    sem = world.semaphores[0]
    held = 0
    try:
        for action, *arguments in script:
            if action == "acquire" and not held:
                n = min(arguments[1], sem.permits)
                yield AcquireSemaphore(sem, n)
                held = n
            elif action == "release" and held:
                held -= 1
                yield ReleaseSemaphore(sem)
            elif action == "cancel" and arguments[0] < len(world.tasks):
                yield Cancel(world.tasks[arguments[0]])
            else:
                yield Checkpoint()
    finally:
        if held:
            n, held = held, 0
            yield ReleaseSemaphore(sem, n)


@examples(80)
@given(st.integers(1, 3), scripts, st.one_of(st.none(), st.integers(0, 1000)))
def test_queue_and_holders_are_those_of_a_naive_model(permits, scripts, seed):
    world = World(scripts)
    model = Model(permits)
    cancelled = set()

    def compare():
        sem = world.semaphores[0]
        assert queue_of(sem) == tuple(task for task, _ in model.queue)
        for task in world.tasks:
            assert held_by(task, sem) == model.held[task]

    def trace(_step, task, effect):
        if not world.semaphores:
            return
        model.unseen.pop(task, None)
        compare()
        if type(effect) is AcquireSemaphore:
            model.acquire(task, effect.n)
        elif type(effect) is ReleaseSemaphore:
            model.release(task, effect.n)
        elif type(effect) is Cancel:
            target = effect.task
            if target not in cancelled and not target.done and target is not task:
                model.cancel(target)
            cancelled.add(target)

    @do
    def program():
        world.semaphores.append((yield CreateSemaphore(permits)))
        for script in scripts:
            world.tasks.append((yield Spawn(modelled(world, script))))
        for task in world.tasks:
            yield Try(Wait(task))

    run(program(), seed=seed, trace=trace)
    compare()
    assert node_of(world.semaphores[0]).in_use == 0


# ------------------------------------------------------- who has acquired what is left


class Permit:
    """When it was acquired, who has it, and since when."""

    def __init__(self, acquired, task):
        self.acquired = acquired
        self.task = task
        self.received = acquired


class Accounts:
    """Who has acquired what: a list of single permits, oldest acquire first."""

    def __init__(self, permits, owned):
        self.permits = permits
        self.owned = owned
        self.acquired = []
        self.moment = 0
        self.ended = []  # in this order

    def of(self, task):
        """A task's permits, those that it has had longest first."""
        own = [permit for permit in self.acquired if permit.task is task]
        return sorted(own, key=lambda permit: permit.received)

    def of_others(self, task):
        """What it may release beyond its own, in the order in which that is charged."""
        if not self.owned:
            return [permit for permit in self.acquired if permit.task is not task]
        return [permit for ended in self.ended for permit in self.of(ended)]

    def try_acquire(self, task, n):
        if len(self.acquired) + n > self.permits:
            return False
        self.moment += 1
        self.acquired += [Permit(self.moment, task) for _ in range(n)]
        return True

    def release(self, task, n):
        own = self.of(task)[-n:]
        others = self.of_others(task)
        if n > len(own) + len(others):
            return False
        for permit in [*own, *others[: n - len(own)]]:
            self.acquired.remove(permit)
        return True

    def transfer_all(self, task, other):
        for permit in reversed(self.of(task)):
            self.moment += 1
            permit.task, permit.received = other, self.moment

    def counts(self):
        return Counter(permit.task for permit in self.acquired)


accounting = st.lists(
    st.tuples(
        st.sampled_from(["try", "release", "release", "checkpoint", "transfer"]),
        st.integers(1, 3),
        st.integers(0, 3),
    ),
    max_size=12,
)


@pytest.mark.filterwarnings("ignore::slotwise.effects.PermitLeakWarning")
@pytest.mark.parametrize("owned", [False, True])
@examples(60)
@given(st.lists(accounting, min_size=1, max_size=4), st.integers(0, 1000))
def test_permits_are_attributed_as_in_a_naive_model(owned, scripts, seed):
    """Only steps that never wait, so that each is done in the model at the same moment."""
    tasks = []

    def compare(sem, accounts):
        left = Counter()
        for holding in left_by_ended_tasks(sem):
            left[holding.task] += len(holding.numbers)
        live = {task: held_by(task, sem) for task in scheduler_of(sem).live}
        assert +(left + Counter(live)) == accounts.counts()
        assert node_of(sem).in_use == len(accounts.acquired)

    @do
    def actor(sem, accounts, number, script):
        yield Checkpoint()
        me = tasks[number]
        for action, n, other in script:
            if action == "checkpoint":
                yield Checkpoint()
            elif action == "try":
                assert (yield TryAcquire(sem, n)) is accounts.try_acquire(me, n)
            elif action == "release":
                outcome = yield Try(ReleaseSemaphore(sem, n))
                assert outcome.ok is accounts.release(me, n)
            elif other < len(tasks) and not tasks[other].done and accounts.of(me):
                yield TransferPermit(sem, tasks[other], len(accounts.of(me)))
                if other != number:
                    accounts.transfer_all(me, tasks[other])
            compare(sem, accounts)
        accounts.ended.append(me)

    @do
    def program():
        sem = yield CreateSemaphore(4, owned=owned)
        accounts = Accounts(4, owned)
        for number, script in enumerate(scripts):
            tasks.append((yield Spawn(actor(sem, accounts, number, script))))
        for task in tasks:
            yield Wait(task)
        compare(sem, accounts)

    run(program(), seed=seed)
