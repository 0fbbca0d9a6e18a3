"""Permits: who gets them, in which order, and whose they are."""

# ruff: noqa: PERF401 - a yield can't stand in a comprehension

from __future__ import annotations

import pytest
from tests._effort import MANY
from tests.effects._inside import node_of

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
