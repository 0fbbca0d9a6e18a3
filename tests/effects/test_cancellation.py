"""Cancelling: at every point at which a task can be, nothing is lost."""

from __future__ import annotations

import pytest

from slotwise.effects import (
    AcquireSemaphore,
    Cancel,
    Checkpoint,
    CreatePromise,
    CreateSemaphore,
    Gather,
    Now,
    Race,
    ReleaseSemaphore,
    SemaphoreInfo,
    Sleep,
    Spawn,
    TaskCancelledError,
    Try,
    TryAcquire,
    UnretrievedTaskError,
    Wait,
    WithPermit,
    do,
    run,
)


@do
def seen(effect, log):
    """Yields the effect and notes what came of it."""
    try:
        yield effect
    except BaseException as error:
        log.append(type(error))
        raise
    log.append("went on")


def test_the_error_is_no_exception():
    assert issubclass(TaskCancelledError, BaseException)
    assert not issubclass(TaskCancelledError, Exception)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("owned", [True, False])
def test_cancelled_between_hand_over_and_resumption_the_permit_goes_to_the_next(n, owned):
    @do
    def waiter(sem):
        yield AcquireSemaphore(sem, n)
        yield ReleaseSemaphore(sem, n)
        return "served"

    @do
    def program():
        sem = yield CreateSemaphore(n, owned=owned)
        yield AcquireSemaphore(sem, n)
        first = yield Spawn(waiter(sem))
        second = yield Spawn(waiter(sem))
        yield Checkpoint()
        yield ReleaseSemaphore(sem, n)  # handed to the first, which has not run since
        assert (yield SemaphoreInfo(sem)).holders == (first,)
        yield first.cancel()
        assert (yield SemaphoreInfo(sem)).holders == (second,)
        served = yield Wait(second)
        with pytest.raises(TaskCancelledError):
            yield Wait(first)
        return served, (yield SemaphoreInfo(sem)).available

    assert run(program()) == ("served", n)


def test_a_task_cancelled_before_it_began_never_begins():
    log = []

    @do
    def child():
        log.append("began")
        yield Checkpoint()

    @do
    def program():
        task = yield Spawn(child())
        yield Cancel(task)
        yield Cancel(task)
        with pytest.raises(TaskCancelledError):
            yield Wait(task)

    run(program())
    assert log == []


def test_every_way_to_wait_can_be_cancelled():
    @do
    def forever(promise):
        yield Wait(promise)

    @do
    def program():
        sem = yield CreateSemaphore(1)
        yield AcquireSemaphore(sem)
        promise = yield CreatePromise()
        endless = yield Spawn(forever(promise))
        for effect in (
            Checkpoint(),
            Sleep(0),
            Sleep(5),
            Wait(promise),
            Wait(endless),
            Gather(promise, endless),
            Race(promise),
            AcquireSemaphore(sem),
            AcquireSemaphore(sem, timeout=5),
            Try(Wait(promise)),
            WithPermit(sem, Checkpoint()),
        ):
            log = []
            task = yield Spawn(seen(effect, log))
            yield Checkpoint()
            yield Cancel(task)
            outcome = yield Try(Wait(task))
            assert isinstance(outcome.error, TaskCancelledError)
            assert outcome.error.task is task
            assert log == [TaskCancelledError], effect
        assert (yield SemaphoreInfo(sem)).waiting == ()
        yield ReleaseSemaphore(sem)

    run(program())


def test_further_cancels_of_an_unwinding_task_do_not_disturb_its_finally():
    @do
    def child(sem, log):
        yield AcquireSemaphore(sem)
        try:
            yield Sleep(100)
        finally:
            try:
                yield cleanup()
            finally:
                yield Checkpoint()
                yield ReleaseSemaphore(sem)
                log.append("released")

    @do
    def cleanup():
        for _ in range(3):
            yield Sleep(1)

    @do
    def program():
        log = []
        sem = yield CreateSemaphore(1)
        task = yield Spawn(child(sem, log))
        yield Checkpoint()
        for _ in range(10):
            yield Cancel(task)
            yield Checkpoint()
        outcome = yield Try(Wait(task))
        assert isinstance(outcome.error, TaskCancelledError)
        assert log == ["released"]
        return (yield SemaphoreInfo(sem)).available

    assert run(program()) == 1


def test_a_task_that_has_swallowed_its_cancellation_can_be_cancelled_again():
    @do
    def stubborn(log):
        for attempt in range(3):
            try:
                yield Sleep(100)
            except TaskCancelledError:
                log.append(attempt)
        return "ended by itself"

    @do
    def program():
        log = []
        task = yield Spawn(stubborn(log))
        yield Checkpoint()
        for _ in range(3):
            yield Cancel(task)
            yield Checkpoint()
        return log, (yield Wait(task))

    assert run(program()) == ([0, 1, 2], "ended by itself")


def test_a_cancelled_gather_or_race_takes_its_own_programs_with_it():
    log = []

    @do
    def child():
        try:
            yield Sleep(100)
        finally:
            log.append("child ended")

    @do
    def program(kind):
        mine = yield Spawn(child())
        task = yield Spawn(kind(child(), mine))
        yield Checkpoint()
        yield Checkpoint()
        yield Cancel(task)
        yield Try(Wait(task))
        yield Checkpoint()
        assert log == ["child ended"]  # not the one that was spawned by somebody else
        yield Wait(mine)
        return log

    for kind in (Gather, Race):
        log.clear()
        assert run(program(kind)) == ["child ended"] * 2


@pytest.mark.parametrize("wait", [Wait, Gather, Race])
def test_an_error_that_a_cancelled_waiter_never_saw_counts_as_unseen(wait):
    @do
    def failing():
        yield Checkpoint()
        raise KeyError("nobody sees this")

    @do
    def killer(waiter):
        yield Checkpoint()
        yield Cancel(waiter)

    @do
    def program():
        failed = yield Spawn(failing())
        waiter = yield Spawn(wait(failed))
        # Its turn comes after the failure has woken the waiter, and before the waiter's.
        killed = yield Spawn(killer(waiter))
        yield Wait(killed)
        assert failed.done
        outcome = yield Try(Wait(waiter))
        assert isinstance(outcome.error, TaskCancelledError)

    with pytest.warns(UnretrievedTaskError, match="nobody sees this"):
        run(program())


def test_cancel_wants_a_task():
    @do
    def program():
        with pytest.raises(TypeError):
            yield Cancel("task")

    run(program())


def test_a_second_cancel_does_not_interrupt_a_finally_reached_by_yield_from():
    ended = []

    def hold(sem):
        yield AcquireSemaphore(sem)
        try:
            yield Sleep(10)
        finally:
            yield Checkpoint()
            ended.append("finally")
            yield ReleaseSemaphore(sem)

    @do
    def worker(sem):
        yield from hold(sem)

    @do
    def main():
        sem = yield CreateSemaphore(1)
        task = yield Spawn(worker(sem))
        yield Checkpoint()
        yield Cancel(task)
        yield Checkpoint()
        yield Cancel(task)
        yield Try(Wait(task))
        return (yield SemaphoreInfo(sem)).available

    assert run(main()) == 1
    assert ended == ["finally"]


def test_what_was_charged_to_an_acquire_that_never_was_is_charged_to_another():
    @do
    def main():
        sem = yield CreateSemaphore(2)
        holder = yield Spawn(AcquireSemaphore(sem, 2))
        yield Checkpoint()
        waiting = yield Spawn(AcquireSemaphore(sem, 2))
        yield Checkpoint()
        yield ReleaseSemaphore(sem, 2)  # the holder's: handed over, and not yet seen
        yield ReleaseSemaphore(sem)  # charged to the acquire that nobody has seen
        assert (yield TryAcquire(sem))
        yield Cancel(waiting)
        yield Try(Wait(waiting))
        with pytest.raises(RuntimeError, match="none of 2 held"):
            yield ReleaseSemaphore(sem)
        yield Wait(holder)
        return (yield SemaphoreInfo(sem)).available

    assert run(main()) == 2


def test_gathers_and_races_nested_3000_deep_are_cancelled_without_recursion():
    @do
    def nested(crowd, depth):
        if depth:
            yield crowd(nested(crowd, depth - 1))
        yield Sleep(100)

    @do
    def main():
        yield Race(nested(Gather, 3_000), nested(Race, 3_000), Sleep(1))
        return (yield Now())

    assert run(main()) == 1.0
