"""explore and replay: every order, each once, and the same again."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.effects import (
    AcquireSemaphore,
    AcquireTimeout,
    Checkpoint,
    CreateSemaphore,
    DeadlockError,
    Gather,
    InvariantViolated,
    PermitLeakWarning,
    ReleaseSemaphore,
    ScheduleMismatch,
    Sleep,
    StepLimitExceeded,
    Try,
    WithPermit,
    do,
    explore,
    replay,
)


@do
def walker(name, log, checkpoints):
    for step in range(checkpoints):
        log.append(f"{name}{step}")
        yield Checkpoint()
    log.append(f"{name}{checkpoints}")


def walks(*checkpoints):
    """A maker of programs whose tasks have so many checkpoints, and the orders it saw."""
    orders = []

    def make():
        log = []
        orders.append(log)

        @do
        def program():
            yield Gather(*[walker("abcdef"[i], log, n) for i, n in enumerate(checkpoints)])

        return program()

    return make, orders


def orders_of(*checkpoints):
    """How many ways there are to interleave so many segments."""
    segments = [n + 1 for n in checkpoints]
    ways = math.factorial(sum(segments))
    for n in segments:
        ways //= math.factorial(n)
    return ways


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(lambda many: orders_of(*many) < 2000)
)
def test_every_order_is_tried_exactly_once(checkpoints):
    make, orders = walks(*checkpoints)
    result = explore(make)
    assert result.exhaustive
    assert result.schedules == orders_of(*checkpoints)
    assert len({tuple(log) for log in orders}) == result.schedules


def test_max_schedules_bounds_the_search():
    make, orders = walks(3, 3)
    for bound, exhaustive in [(1, False), (69, False), (70, True), (71, True)]:
        orders.clear()
        result = explore(make, max_schedules=bound)
        assert result.exhaustive is exhaustive
        assert result.schedules == min(bound, 70)
        assert len({tuple(log) for log in orders}) == result.schedules


def preemptions_of(log):
    """How often a task was left that had not ended."""
    last = {"a": "a3", "b": "b3"}
    return sum(one[0] != two[0] and one != last[one[0]] for one, two in pairwise(log))


@pytest.mark.parametrize("bound", range(8))
def test_preemptions_bound_the_search_exactly(bound):
    make, every = walks(3, 3)
    explore(make)
    make, orders = walks(3, 3)
    result = explore(make, preemptions=bound)
    wanted = {tuple(log) for log in every if preemptions_of(log) <= bound}
    assert {tuple(log) for log in orders} == wanted
    assert result.schedules == len(wanted)
    assert result.exhaustive is (len(wanted) == 70)


def test_few_preemptions_come_first():
    make, orders = walks(3, 3)
    explore(make)
    costs = [preemptions_of(log) for log in orders]
    assert costs == sorted(costs)


class Counter:
    """A counter that is read and written in two steps."""

    def __init__(self, locked):
        self.locked = locked

    def make(self):
        self.value = 0
        self.inside = 0
        return self.program()

    @do
    def add(self):
        before = self.value
        yield Checkpoint()
        self.value = before + 1

    @do
    def program(self):
        mutex = yield CreateSemaphore(1, "mutex")
        job = (lambda: WithPermit(mutex, self.add())) if self.locked else self.add
        yield Gather(job(), job(), job())
        assert self.value == 3, f"lost updates: {self.value}"


def test_a_lost_update_is_found_and_replayed():
    counter = Counter(locked=False)
    result = explore(counter.make)
    assert not result.ok
    assert not result.exhaustive
    assert isinstance(result.failure.error, AssertionError)
    for _ in range(3):
        with pytest.raises(AssertionError, match=str(result.failure.error).split("\n")[0]):
            replay(counter.make, result.failure.schedule)
    with pytest.raises(AssertionError):
        replay(counter.make, tuple(result.failure.schedule))


def test_a_mutex_mends_it_in_every_order():
    result = explore(Counter(locked=True).make)
    assert result.ok
    assert result.exhaustive
    assert result.schedules > 6


def test_a_mended_program_is_replayed_and_goes_on_when_the_schedule_has_ended():
    broken = True

    @do
    def worker(box):
        box.append(1)
        yield Checkpoint()
        assert not (broken and len(box) == 2), "both are in"
        yield Checkpoint()
        box.pop()

    @do
    def program():
        box = []
        yield Gather(worker(box), worker(box))
        return "mended"

    failure = explore(program).failure
    with pytest.raises(AssertionError, match="both are in"):
        replay(program, failure.schedule)
    broken = False
    assert replay(program, failure.schedule) == "mended"


def test_a_schedule_of_another_program_is_refused():
    make, _ = walks(3, 3)
    with pytest.raises(ScheduleMismatch, match="task 9"):
        replay(make, (9,))


def test_an_invariant_is_checked_after_every_step():
    state = []

    @do
    def worker():
        state.append("in")
        yield Checkpoint()
        state.append("out")
        yield Checkpoint()

    def make():
        state.clear()

        @do
        def program():
            yield Gather(worker(), worker())

        return program()

    def one_at_a_time():
        return state.count("in") - state.count("out") <= 1

    result = explore(make, invariant=one_at_a_time)
    assert isinstance(result.failure.error, InvariantViolated)
    assert isinstance(result.failure.error, AssertionError)
    assert "one_at_a_time" in str(result.failure.error)
    with pytest.raises(InvariantViolated, match="one_at_a_time"):
        replay(make, result.failure.schedule)
    with pytest.raises(InvariantViolated):
        replay(make, tuple(result.failure.schedule), invariant=one_at_a_time)

    def asserts():
        assert one_at_a_time(), "two are in"

    result = explore(make, invariant=asserts)
    assert type(result.failure.error) is AssertionError
    with pytest.raises(AssertionError, match="two are in"):
        replay(make, result.failure.schedule)


def test_an_error_of_the_invariant_itself_is_not_a_failure_of_the_program():
    def broken():
        raise KeyError("a bug in the invariant")

    make, _ = walks(1, 1)
    with pytest.raises(KeyError):
        explore(make, invariant=broken)


@do
def grab(first, second):
    yield AcquireSemaphore(first)
    try:
        yield Checkpoint()
        yield WithPermit(second, Checkpoint())
    finally:
        yield ReleaseSemaphore(first)


@do
def abba():
    left = yield CreateSemaphore(1, "left")
    right = yield CreateSemaphore(1, "right")
    yield Gather(grab(left, right), grab(right, left))


def test_a_deadlock_is_found_and_the_table_tells_how_it_came():
    failure = explore(abba).failure
    assert isinstance(failure.error, DeadlockError)
    lines = str(failure).splitlines()
    (head,) = [line for line in lines if line.split() == ["step", "task", "effect", "semaphores"]]
    rows = lines[lines.index(head) + 1 :]
    assert [int(row.split()[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert "AcquireSemaphore(left)" in str(failure)
    assert "<- grab-" in rows[-1]
    assert "left 1/1 [grab-" in rows[-1]
    with pytest.raises(DeadlockError) as caught:
        replay(abba, failure.schedule)
    assert str(caught.value) == str(failure.error)


def test_time_is_virtual_and_timeouts_are_explored():
    outcomes = set()

    @do
    def impatient(sem):
        yield AcquireSemaphore(sem, timeout=2)
        yield ReleaseSemaphore(sem)

    @do
    def holder(sem):
        yield WithPermit(sem, Sleep(3))

    @do
    def program():
        sem = yield CreateSemaphore(1)
        _, outcome = yield Gather(holder(sem), Try(impatient(sem)))
        outcomes.add(type(outcome.error))

    result = explore(program)
    assert result.ok
    assert result.exhaustive
    # Who comes first decides: nobody waits, or the patience ends.
    assert outcomes == {type(None), AcquireTimeout}


def test_arguments_are_checked():
    make, _ = walks(1)
    with pytest.raises(TypeError):
        explore(make())
    with pytest.raises(ValueError, match="max_schedules"):
        explore(make, max_schedules=0)
    with pytest.raises(ValueError, match="preemptions"):
        explore(make, preemptions=-1)
    with pytest.raises(TypeError):
        explore(lambda: 5)


def test_a_program_that_is_not_fresh_is_pointed_out():
    runs = []

    @do
    def program():
        runs.append(1)
        yield Checkpoint()
        if len(runs) == 1:
            raise KeyError("only once")

    failure = explore(program).failure
    assert "ended differently" in str(failure)


@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_program_that_runs_differently_each_time_is_refused(later):
    runs = []

    @do
    def program():
        runs.append(1)
        walkers = 3 if len(runs) == 1 else later
        yield Gather(*[walker("w", [], 1) for _ in range(walkers)])

    with pytest.raises(ScheduleMismatch, match="recreate everything"):
        explore(program)


@pytest.mark.soak
def test_ten_thousand_schedules_of_a_large_program_stay_within_memory():
    make, _ = walks(20, 20, 20)
    result = explore(make, max_schedules=2000)
    assert (result.ok, result.exhaustive, result.schedules) == (True, False, 2000)


def test_tasks_that_wait_for_each_other_in_a_loop_are_a_failure_and_no_hang() -> None:
    def after_you():
        polite = {"left": True, "right": True}

        @do
        def door(mine, theirs):
            while polite[theirs]:
                yield Checkpoint()
            polite[mine] = False

        @do
        def meet():
            yield Gather(door("left", "right"), door("right", "left"))

        return meet()

    found = explore(after_you, max_turns=500)
    assert isinstance(found.failure.error, StepLimitExceeded)
    with pytest.raises(StepLimitExceeded, match="in a loop"):
        replay(after_you, found.failure.schedule)


def test_a_finally_that_never_ends_does_not_keep_a_stopped_run_alive() -> None:
    @do
    def stubborn():
        try:
            while True:
                yield Checkpoint()
        finally:
            while True:
                yield Checkpoint()

    found = explore(stubborn, max_turns=100)
    assert isinstance(found.failure.error, StepLimitExceeded)


def test_leaks_are_reported_once_for_all_schedules():
    @do
    def leaver(sem):
        yield Checkpoint()
        yield AcquireSemaphore(sem)

    @do
    def program():
        sem = yield CreateSemaphore(5)
        yield Gather(leaver(sem), leaver(sem))

    with pytest.warns(PermitLeakWarning) as caught:
        result = explore(program)
    assert result.ok
    assert len(caught) == len(result.warnings) == 2
