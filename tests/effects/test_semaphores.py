"""Permits: who gets them, in which order, and whose they are."""

# ruff: noqa: PERF401 - a yield can't stand in a comprehension

from __future__ import annotations

from itertools import permutations

import pytest
from tests._effort import MANY
from tests.effects._inside import node_of, scheduler_of

from slotwise.effects import (
    AcquireSemaphore,
    AcquireTimeout,
    Checkpoint,
    CreateSemaphore,
    ForeignSemaphoreError,
    Gather,
    Now,
    ReleaseSemaphore,
    SemaphoreInfo,
    Sleep,
    Spawn,
    TaskCancelledError,
    TransferPermit,
    Try,
    TryAcquire,
    Wait,
    WithPermit,
    do,
    run,
)


@do
def hold(sem, log, name, n=1):
    yield AcquireSemaphore(sem, n)
    log.append(name)
    yield Checkpoint()
    yield ReleaseSemaphore(sem, n)


@do
def this_task():
    """The task that yields this: who holds a semaphore that nobody else knows."""
    sem = yield CreateSemaphore(1)
    yield AcquireSemaphore(sem)
    (task,) = (yield SemaphoreInfo(sem)).holders
    yield ReleaseSemaphore(sem)
    return task


def test_a_granted_acquire_does_not_switch_tasks():
    log = []

    @do
    def other():
        log.append("other")
        yield Checkpoint()

    @do
    def program():
        sem = yield CreateSemaphore(2)
        task = yield Spawn(other())
        yield AcquireSemaphore(sem)
        yield AcquireSemaphore(sem)
        log.append("both")
        yield ReleaseSemaphore(sem, 2)
        log.append("released")
        yield Wait(task)

    run(program())
    assert log == ["both", "released", "other"]


def test_release_hands_to_the_oldest_waiter_and_does_not_switch():
    log = []

    @do
    def program():
        sem = yield CreateSemaphore(1)
        yield AcquireSemaphore(sem)
        tasks = []
        for name in "abc":
            tasks.append((yield Spawn(hold(sem, log, name), name=name)))
        yield Checkpoint()
        yield ReleaseSemaphore(sem)
        log.append("released")
        state = yield SemaphoreInfo(sem)
        assert state.holders == (tasks[0],)
        assert state.waiting == tuple(tasks[1:])
        yield Gather(*tasks)

    run(program())
    assert log == ["released", "a", "b", "c"]


def test_a_newcomer_does_not_pass_a_waiter():
    log = []

    @do
    def program():
        sem = yield CreateSemaphore(1)
        yield AcquireSemaphore(sem)
        waiter = yield Spawn(hold(sem, log, "waiter"))
        yield Checkpoint()
        yield ReleaseSemaphore(sem)
        assert (yield TryAcquire(sem)) is False
        yield AcquireSemaphore(sem)
        log.append("newcomer")
        yield ReleaseSemaphore(sem)
        yield Wait(waiter)

    run(program())
    assert log == ["waiter", "newcomer"]


def test_a_large_request_is_not_starved_by_small_ones():
    log = []

    @do
    def program():
        sem = yield CreateSemaphore(3)
        yield AcquireSemaphore(sem, 2)
        large = yield Spawn(hold(sem, log, "large", n=3))
        yield Checkpoint()
        small = yield Spawn(hold(sem, log, "small"))
        yield Checkpoint()
        assert (yield TryAcquire(sem)) is False  # one is free, and it is not for newcomers
        state = yield SemaphoreInfo(sem)
        assert (state.available, state.waiting) == (1, (large, small))
        yield ReleaseSemaphore(sem, 2)
        yield Gather(large, small)

    run(program())
    assert log == ["large", "small"]


def test_those_in_the_line_come_before_a_large_request_and_after_it():
    log = []

    @do
    def program():
        sem = yield CreateSemaphore(2)
        yield AcquireSemaphore(sem, 2)
        tasks = []
        for name, n in [("a", 1), ("b", 1), ("big", 2), ("c", 1), ("d", 1)]:
            tasks.append((yield Spawn(hold(sem, log, name, n))))
            yield Checkpoint()
        assert (yield SemaphoreInfo(sem)).waiting == tuple(tasks)
        yield ReleaseSemaphore(sem, 2)
        yield Gather(*tasks)

    run(program())
    assert log == ["a", "b", "big", "c", "d"]


def test_those_who_left_the_line_are_passed_over_also_when_a_claim_waits_behind():
    log = []

    @do
    def program():
        sem = yield CreateSemaphore(2)
        yield AcquireSemaphore(sem, 2)
        tasks = []
        for name, n in [("gone", 1), ("also gone", 1), ("here", 1), ("gone", 1), ("big", 2)]:
            tasks.append((yield Spawn(hold(sem, log, name, n))))
            yield Checkpoint()
        for index in (0, 1, 3):
            yield tasks[index].cancel()
        assert (yield SemaphoreInfo(sem)).waiting == (tasks[2], tasks[4])
        yield ReleaseSemaphore(sem)
        assert (yield SemaphoreInfo(sem)).holders == ((yield this_task()), tasks[2])
        yield ReleaseSemaphore(sem)
        yield Gather(tasks[2], tasks[4])
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 2
    assert log == ["here", "big"]


@pytest.mark.parametrize("others_wait", [False, True])
def test_releasing_what_others_own_raises_and_changes_nothing(others_wait):
    inside = 0

    @do
    def worker(sem):
        nonlocal inside
        yield AcquireSemaphore(sem)
        inside += 1
        assert inside == 1
        yield Sleep(1)
        inside -= 1
        yield ReleaseSemaphore(sem)

    @do
    def program():
        sem = yield CreateSemaphore(1, "mutex", owned=True)
        tasks = [(yield Spawn(worker(sem), name="holder"))]
        yield Checkpoint()
        if others_wait:
            for _ in range(3):
                tasks.append((yield Spawn(worker(sem))))
            yield Checkpoint()
        before = yield SemaphoreInfo(sem)
        for n in (1, 2):
            with pytest.raises(RuntimeError, match=r"'mutex'.*'program'.*none"):
                yield ReleaseSemaphore(sem, n)
        assert (yield SemaphoreInfo(sem)) == before
        yield Gather(*tasks)
        with pytest.raises(RuntimeError):
            yield ReleaseSemaphore(sem)
        assert (yield SemaphoreInfo(sem)).available == 1

    run(program())


def test_releasing_more_than_held_changes_nothing():
    @do
    def program():
        sem = yield CreateSemaphore(3)
        yield AcquireSemaphore(sem, 2)
        with pytest.raises(RuntimeError):
            yield ReleaseSemaphore(sem, 3)
        assert (yield SemaphoreInfo(sem)).available == 1
        yield ReleaseSemaphore(sem)
        yield ReleaseSemaphore(sem)
        assert (yield SemaphoreInfo(sem)).available == 3

    run(program())


def test_permits_of_an_ended_task_may_be_released_by_anybody():
    @do
    def leaver(sem):
        yield AcquireSemaphore(sem, 2)

    @do
    def program():
        sem = yield CreateSemaphore(2)
        task = yield Spawn(leaver(sem))
        yield Wait(task)
        assert (yield SemaphoreInfo(sem)).holders == (task,)
        yield ReleaseSemaphore(sem)
        yield ReleaseSemaphore(sem)
        with pytest.raises(RuntimeError):
            yield ReleaseSemaphore(sem)
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 2  # and no leak is reported


def test_transferred_permits_are_the_other_tasks():
    @do
    def receiver(sem, log):
        yield Checkpoint()
        yield ReleaseSemaphore(sem)
        log.append("released")

    @do
    def program():
        log = []
        sem = yield CreateSemaphore(2, owned=True)
        yield AcquireSemaphore(sem)
        task = yield Spawn(receiver(sem, log))
        yield TransferPermit(sem, task)
        assert (yield SemaphoreInfo(sem)).holders == (task,)
        with pytest.raises(RuntimeError):
            yield ReleaseSemaphore(sem)
        yield Wait(task)
        assert (yield SemaphoreInfo(sem)).available == 2
        return log

    assert run(program()) == ["released"]


def test_transfer_refuses_what_is_not_held_and_tasks_that_have_ended():
    @do
    def idle():
        yield Checkpoint()

    @do
    def program():
        sem = yield CreateSemaphore(2)
        alive = yield Spawn(idle())
        with pytest.raises(RuntimeError, match="none"):
            yield TransferPermit(sem, alive)
        yield AcquireSemaphore(sem)
        with pytest.raises(RuntimeError, match="holds 1"):
            yield TransferPermit(sem, alive, 2)
        yield Wait(alive)
        with pytest.raises(RuntimeError, match="has ended"):
            yield TransferPermit(sem, alive)
        with pytest.raises(TypeError):
            yield TransferPermit(sem, "task")
        yield ReleaseSemaphore(sem)

    run(program())


def test_part_of_what_is_held_can_be_transferred():
    @do
    def receiver(sem):
        yield Checkpoint()
        yield ReleaseSemaphore(sem, 2)

    @do
    def program():
        sem = yield CreateSemaphore(3, owned=True)
        yield AcquireSemaphore(sem, 3)
        task = yield Spawn(receiver(sem))
        yield TransferPermit(sem, task, 2)
        assert (yield SemaphoreInfo(sem)).holders == ((yield this_task()), task)
        yield ReleaseSemaphore(sem)
        yield Wait(task)
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 3


def test_tasks_signal_each_other_by_releasing_what_another_has_acquired():
    log = []

    @do
    def waiter(signal):
        yield AcquireSemaphore(signal)
        log.append("signalled")

    @do
    def program():
        signal = yield CreateSemaphore(1, "signal")
        yield AcquireSemaphore(signal)
        task = yield Spawn(waiter(signal))
        yield Checkpoint()
        log.append("signals")
        yield ReleaseSemaphore(signal)
        yield Wait(task)
        yield ReleaseSemaphore(signal)  # what the waiter has acquired
        with pytest.raises(RuntimeError, match="released by 'program', but none of 1 held"):
            yield ReleaseSemaphore(signal)
        return (yield SemaphoreInfo(signal)).available

    assert run(program()) == 1
    assert log == ["signals", "signalled"]


def test_a_release_counts_first_as_the_tasks_own_and_then_as_the_oldest_of_others():
    @do
    def taker(sem, n):
        yield AcquireSemaphore(sem, n)
        yield Sleep(1)

    @do
    def program():
        sem = yield CreateSemaphore(6)
        tasks = []
        for n in (1, 2):
            tasks.append((yield Spawn(taker(sem, n))))
            yield Checkpoint()
        first, second = tasks
        root = yield this_task()
        yield AcquireSemaphore(sem)
        seen = []
        for n in (1, 1, 1):
            yield ReleaseSemaphore(sem, n)
            seen.append((yield SemaphoreInfo(sem)).holders)
        yield ReleaseSemaphore(sem)
        assert root not in seen[0]
        assert seen == [(first, second), (second,), (second,)]
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 6


def test_too_large_a_release_changes_nothing_though_part_of_it_is_outstanding():
    @do
    def program():
        sem = yield CreateSemaphore(3)
        yield AcquireSemaphore(sem, 2)
        with pytest.raises(RuntimeError, match=r"3 permits .* but 2 of 3 held"):
            yield ReleaseSemaphore(sem, 3)
        state = yield SemaphoreInfo(sem)
        yield ReleaseSemaphore(sem, 2)
        return state.available

    assert run(program()) == 1


def test_what_is_handed_on_keeps_its_age_when_others_release():
    @do
    def idle():
        yield Sleep(1)

    @do
    def program():
        sem = yield CreateSemaphore(3)
        younger, taker = (yield Spawn(hold_for_long(sem))), (yield Spawn(idle()))
        yield AcquireSemaphore(sem)
        yield Checkpoint()
        yield TransferPermit(sem, taker)
        yield ReleaseSemaphore(sem)  # of the taker: that was acquired first
        assert (yield SemaphoreInfo(sem)).holders == (younger,)
        yield ReleaseSemaphore(sem)
        return (yield SemaphoreInfo(sem)).available

    @do
    def hold_for_long(sem):
        yield AcquireSemaphore(sem)
        yield Sleep(1)

    assert run(program()) == 3


def test_a_crowd_of_signals_costs_the_same_each(monkeypatch):
    """Which acquire is the oldest is not looked for among all tasks every time."""
    looked = 0

    @do
    def consumer(signal):
        yield AcquireSemaphore(signal)
        yield Sleep(1)

    class Live(dict):
        def __iter__(self):
            nonlocal looked
            looked += 1
            return super().__iter__()

    @do
    def program():
        signal = yield CreateSemaphore(500)
        for _ in range(500):
            yield Spawn(consumer(signal))
        yield Checkpoint()
        scheduler = scheduler_of(signal)
        monkeypatch.setattr(scheduler, "live", Live(scheduler.live))
        for _ in range(500):
            yield ReleaseSemaphore(signal)
            yield AcquireSemaphore(signal)
            yield ReleaseSemaphore(signal)
        return (yield SemaphoreInfo(signal)).available

    run(program())
    assert looked < 10


def test_try_acquire_never_parks():
    @do
    def program():
        sem = yield CreateSemaphore(3)
        assert (yield TryAcquire(sem, 2)) is True
        assert (yield TryAcquire(sem, 2)) is False
        assert (yield TryAcquire(sem)) is True
        yield ReleaseSemaphore(sem, 3)
        assert (yield Now()) == 0

    run(program())


def test_a_timeout_takes_nothing_and_says_who_was_in_the_way():
    @do
    def holder(sem):
        yield WithPermit(sem, Sleep(100))

    @do
    def program():
        sem = yield CreateSemaphore(1, "api")
        task = yield Spawn(holder(sem))
        yield Checkpoint()
        with pytest.raises(AcquireTimeout, match=r"'api' within 5 s: 1 of 1 held, 0 others"):
            yield AcquireSemaphore(sem, timeout=5)
        assert (yield Now()) == 5
        with pytest.raises(AcquireTimeout):
            yield AcquireSemaphore(sem, timeout=0)
        assert (yield Now()) == 5
        assert (yield SemaphoreInfo(sem)).waiting == ()
        yield AcquireSemaphore(sem, timeout=1000)
        assert (yield Now()) == 100
        yield ReleaseSemaphore(sem)
        yield Wait(task)
        yield AcquireSemaphore(sem, timeout=0)
        yield ReleaseSemaphore(sem)

    run(program())


def test_waiters_that_time_out_together_do_not_get_each_others_permits():
    @do
    def impatient(sem, n):
        result = yield Try(AcquireSemaphore(sem, n, timeout=5))
        return type(result.error)

    @do
    def program():
        sem = yield CreateSemaphore(2)
        yield AcquireSemaphore(sem)
        # The head wants two, the one behind would fit when the head has gone.
        tasks = [(yield Spawn(impatient(sem, 2))), (yield Spawn(impatient(sem, 1)))]
        answers = yield Gather(*tasks)
        assert (yield SemaphoreInfo(sem)).available == 1
        yield ReleaseSemaphore(sem)
        return answers

    assert run(program()) == [AcquireTimeout, AcquireTimeout]


def test_waiters_that_time_out_together_hear_of_it_in_the_order_of_the_queue():
    @do
    def impatient(sem, name, log):
        yield Try(AcquireSemaphore(sem, timeout=5))
        log.append(name)

    @do
    def program():
        log = []
        sem = yield CreateSemaphore(1)
        yield AcquireSemaphore(sem)
        yield Gather(*[impatient(sem, name, log) for name in range(50)])
        yield ReleaseSemaphore(sem)
        return log

    assert run(program()) == list(range(50))


def test_the_end_of_a_heads_patience_serves_those_behind_it():
    @do
    def head(sem):
        with pytest.raises(AcquireTimeout):
            yield AcquireSemaphore(sem, 2, timeout=5)

    @do
    def behind(sem):
        yield AcquireSemaphore(sem)
        at = yield Now()
        yield ReleaseSemaphore(sem)
        return at

    @do
    def program():
        sem = yield CreateSemaphore(2)
        yield AcquireSemaphore(sem)
        tasks = [(yield Spawn(head(sem))), (yield Spawn(behind(sem)))]
        answers = yield Gather(*tasks)
        yield ReleaseSemaphore(sem)
        return answers

    assert run(program()) == [None, 5]


@pytest.mark.parametrize(
    ("n", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (4, ValueError),
        (True, TypeError),
        (1.0, TypeError),
        ("1", TypeError),
    ],
)
@pytest.mark.parametrize("effect", [AcquireSemaphore, TryAcquire])
def test_impossible_counts_are_refused_at_the_yield(effect, n, error):
    @do
    def program():
        sem = yield CreateSemaphore(3)
        with pytest.raises(error):
            yield effect(sem, n)
        with pytest.raises(error):
            yield WithPermit(sem, Checkpoint(), n)
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 3


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_impossible_timeouts_are_refused_at_the_yield(timeout):
    @do
    def program():
        sem = yield CreateSemaphore(1)
        with pytest.raises((TypeError, ValueError)):
            yield AcquireSemaphore(sem, timeout=timeout)
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


@pytest.mark.parametrize("effect", [AcquireSemaphore, TryAcquire, ReleaseSemaphore, SemaphoreInfo])
def test_anything_but_a_semaphore_is_refused_at_the_yield(effect):
    @do
    def program():
        for wrong in (None, "semaphore", [], 5):
            with pytest.raises(TypeError):
                yield effect(wrong)

    run(program())


def test_with_permit_answers_the_programs_value_and_releases():
    @do
    def work():
        yield Checkpoint()
        return 7

    @do
    def program():
        sem = yield CreateSemaphore(2)
        value = yield WithPermit(sem, work(), 2)
        return value, (yield SemaphoreInfo(sem)).available

    assert run(program()) == (7, 2)


def test_with_permit_releases_when_the_program_fails():
    @do
    def work():
        yield Checkpoint()
        raise KeyError("work")

    @do
    def program():
        sem = yield CreateSemaphore(1)
        with pytest.raises(KeyError):
            yield WithPermit(sem, work())
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


def test_with_permit_gives_back_its_own_permits_only():
    @do
    def work(sem, other):
        yield TransferPermit(sem, other)

    @do
    def other(sem):
        yield Sleep(1)
        yield ReleaseSemaphore(sem)

    @do
    def program():
        sem = yield CreateSemaphore(3)
        yield AcquireSemaphore(sem)
        task = yield Spawn(other(sem))
        yield WithPermit(sem, work(sem, task))
        # The bracket's was handed on; the one taken before it is still there.
        assert (yield SemaphoreInfo(sem)).available == 1
        yield ReleaseSemaphore(sem)
        yield Wait(task)
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 3


def test_with_permit_says_when_its_permit_was_released_inside():
    @do
    def work(sem):
        yield ReleaseSemaphore(sem)

    @do
    def program():
        sem = yield CreateSemaphore(1)
        with pytest.raises(
            RuntimeError,
            match="released by 'program' before the end of the WithPermit of 'program'",
        ):
            yield WithPermit(sem, work(sem))
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


def test_with_permit_releases_something_else_for_what_another_task_released_of_it():
    @do
    def swap(sem):
        yield ReleaseSemaphore(sem)  # the bracket's
        yield AcquireSemaphore(sem)  # which the bracket's end gives back

    @do
    def program():
        sem = yield CreateSemaphore(1)
        yield WithPermit(sem, Wait((yield Spawn(swap(sem)))))
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


def test_with_permit_names_the_task_that_released_its_permit():
    @do
    def thief(sem):
        yield ReleaseSemaphore(sem)

    @do
    def program():
        sem = yield CreateSemaphore(1)
        task = yield Spawn(thief(sem), name="thief")
        with pytest.raises(RuntimeError, match="had been released by 'thief'"):
            yield WithPermit(sem, Wait(task))
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


@pytest.mark.parametrize("owned", [True, False])
def test_with_permit_works_with_and_without_owners(owned):
    @do
    def program():
        sem = yield CreateSemaphore(1, owned=owned)
        yield Gather(*[WithPermit(sem, Checkpoint()) for _ in range(5)])
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


def test_a_handle_of_another_run_is_refused_and_nothing_is_touched():
    @do
    def make():
        return (yield CreateSemaphore(1, "theirs"))

    @do
    def use(theirs):
        ours = yield CreateSemaphore(1)
        for effect in (
            AcquireSemaphore(theirs),
            AcquireSemaphore(theirs, timeout=1),
            TryAcquire(theirs),
            ReleaseSemaphore(theirs),
            SemaphoreInfo(theirs),
            WithPermit(theirs, Checkpoint()),
        ):
            with pytest.raises(ForeignSemaphoreError, match="'theirs'"):
                yield effect
        return (yield SemaphoreInfo(ours)).available

    assert issubclass(ForeignSemaphoreError, RuntimeError)
    theirs = run(make())
    assert run(use(theirs)) == 1
    assert node_of(theirs).in_use == 0


def test_a_foreign_handle_is_refused_while_its_own_run_goes_on():
    @do
    def inner(theirs):
        with pytest.raises(ForeignSemaphoreError):
            yield ReleaseSemaphore(theirs)

    @do
    def outer():
        sem = yield CreateSemaphore(1)
        yield AcquireSemaphore(sem)
        run(inner(sem))
        state = yield SemaphoreInfo(sem)
        yield ReleaseSemaphore(sem)
        return state.available

    assert run(outer()) == 0


def test_permits_of_several_semaphores_are_released_in_any_order():
    @do
    def program():
        sems = []
        for name in "abc":
            sems.append((yield CreateSemaphore(2, name)))
        for order in permutations(range(3)):
            for sem in sems:
                yield AcquireSemaphore(sem)
            for sem in reversed(sems):
                yield AcquireSemaphore(sem)
            for index in [*order, *reversed(order)]:
                yield ReleaseSemaphore(sems[index])
            for sem in sems:
                assert (yield SemaphoreInfo(sem)).available == 2
                with pytest.raises(RuntimeError):
                    yield ReleaseSemaphore(sem)

    run(program())


def test_many_permits_of_one_task_are_counted():
    @do
    def program():
        sem = yield CreateSemaphore(10)
        for n in (1, 1, 3, 1):
            yield AcquireSemaphore(sem, n)
        assert (yield SemaphoreInfo(sem)).available == 4
        for n in (2, 4):
            yield ReleaseSemaphore(sem, n)
        assert (yield SemaphoreInfo(sem)).available == 10

    run(program())


@pytest.mark.soak
@pytest.mark.parametrize("count", MANY)
def test_very_many_waiters_are_cancelled_quickly(count):
    @do
    def waiter(sem):
        yield AcquireSemaphore(sem)

    @do
    def program():
        sem = yield CreateSemaphore(1)
        yield AcquireSemaphore(sem)
        tasks = []
        for _ in range(count):
            tasks.append((yield Spawn(waiter(sem))))
        yield Checkpoint()
        for task in tasks:
            yield task.cancel()
        for task in tasks:
            with pytest.raises(TaskCancelledError):
                yield Wait(task)
        yield ReleaseSemaphore(sem)
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


def test_a_release_by_another_task_does_not_hide_how_a_bracket_ended() -> None:
    @do
    def program():
        sem = yield CreateSemaphore(1)
        task = yield Spawn(WithPermit(sem, Sleep(5)))
        yield Sleep(1)
        yield ReleaseSemaphore(sem)
        yield task.cancel()
        with pytest.raises(TaskCancelledError):
            yield Wait(task)

        @do
        def fail():
            yield Sleep(2)
            raise ValueError("the work")

        task = yield Spawn(WithPermit(sem, fail()))
        yield Sleep(1)
        yield ReleaseSemaphore(sem)
        with pytest.raises(ValueError, match="the work"):
            yield Wait(task)
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1
