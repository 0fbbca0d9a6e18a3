"""Deadlocks: found at once, explained, and unwound."""

# ruff: noqa: PERF401 - a yield can't stand in a comprehension

from __future__ import annotations

import linecache

import pytest

from slotwise.effects import (
    AcquireSemaphore,
    Checkpoint,
    CreatePromise,
    CreateSemaphore,
    DeadlockError,
    Gather,
    ReleaseSemaphore,
    Sleep,
    Spawn,
    Wait,
    WithPermit,
    do,
    run,
    run_async,
)

pytestmark = pytest.mark.filterwarnings("ignore::slotwise.effects.PermitLeakWarning")


@do
def both(first, second, log=None):
    yield AcquireSemaphore(first)
    try:
        yield Sleep(0.001)
        yield AcquireSemaphore(second)
        yield ReleaseSemaphore(second)
    finally:
        yield Checkpoint()
        yield ReleaseSemaphore(first)
        if log is not None:
            log.append("finally")


@do
def abba(log=None):
    left = yield CreateSemaphore(1, "left")
    right = yield CreateSemaphore(1, "right")
    alice = yield Spawn(both(left, right, log), name="alice")
    bob = yield Spawn(both(right, left, log), name="bob")
    yield Gather(alice, bob)


def check_abba(error):
    text = str(error)
    assert "'alice' waits for semaphore 'right', held by 'bob'" in text
    assert "'bob' waits for semaphore 'left', held by 'alice'" in text
    (cycle,) = error.cycles
    assert {task.name for task in cycle} == {"alice", "bob"}
    assert {s.name: [t.name for t in tasks] for s, tasks in error.holders.items()} == {
        "left": ["alice"],
        "right": ["bob"],
    }
    waits = {task.name: getattr(what, "name", None) for task, what in error.waiters.items()}
    assert waits == {"abba": None, "alice": "right", "bob": "left"}
    assert error.leaked == ()
    assert __file__ in text


def test_abba_is_explained_after_all_finally_blocks_ran():
    log = []
    with pytest.raises(DeadlockError) as caught:
        run(abba(log))
    check_abba(caught.value)
    assert log == ["finally", "finally"]
    assert isinstance(caught.value, RuntimeError)


async def test_run_async_finds_it_when_nothing_is_pending():
    log = []
    with pytest.raises(DeadlockError) as caught:
        await run_async(abba(log))
    check_abba(caught.value)
    assert log == ["finally", "finally"]


def test_permits_left_by_ended_tasks_are_named_with_lines():
    @do
    def leaver(sem):
        yield AcquireSemaphore(sem)  # never released

    @do
    def program():
        sem = yield CreateSemaphore(1, "mutex")
        task = yield Spawn(leaver(sem), name="leaver")
        yield Wait(task)
        yield AcquireSemaphore(sem)

    with pytest.raises(DeadlockError) as caught:
        run(program())
    (leak,) = caught.value.leaked
    assert (leak.semaphore.name, leak.task.name, leak.permits) == ("mutex", "leaver", 1)
    assert "# never released" in linecache.getline(__file__, leak.line)
    assert f"{__file__}:{leak.line}" in str(caught.value)
    assert caught.value.cycles == ()


def test_a_promise_nobody_keeps_is_a_deadlock():
    @do
    def program():
        promise = yield CreatePromise("answer")
        yield Wait(promise)

    with pytest.raises(DeadlockError, match="promise 'answer'"):
        run(program())


def test_acquiring_twice_is_a_cycle_of_one():
    @do
    def program():
        sem = yield CreateSemaphore(1, "mutex")
        yield AcquireSemaphore(sem)
        yield AcquireSemaphore(sem)

    with pytest.raises(DeadlockError, match="'program' -> semaphore 'mutex' -> 'program'"):
        run(program())


def test_a_finally_that_waits_for_ever_is_a_deadlock_and_ends():
    log = []

    @do
    def child(promise):
        try:
            yield Sleep(100)
        finally:
            try:
                yield Wait(promise)
            finally:
                log.append("ended")

    @do
    def program():
        promise = yield CreatePromise("never")
        yield Spawn(child(promise))
        yield Sleep(1)
        return "root"

    with pytest.raises(DeadlockError, match="promise 'never'"):
        run(program())
    assert log == ["ended"]


def test_a_task_that_never_gives_up_is_closed():
    @do
    def child(promise):
        while True:
            try:
                yield Wait(promise)
            except BaseException as error:
                if isinstance(error, GeneratorExit):
                    raise

    @do
    def program():
        yield Wait((yield Spawn(child((yield CreatePromise())))))

    with pytest.raises(DeadlockError):
        run(program())


def test_many_waiters_make_a_message_of_bearable_length():
    @do
    def program():
        promise = yield CreatePromise()
        yield Gather(*[Wait(promise)] * 500, *[waiter(promise) for _ in range(500)])

    @do
    def waiter(promise):
        yield Wait(promise)

    with pytest.raises(DeadlockError) as caught:
        run(program())
    assert len(str(caught.value).splitlines()) < 40
    assert len(caught.value.waiters) == 501


def test_a_deadlock_while_unwinding_does_not_hide_the_error_of_the_root():
    @do
    def stuck(promise):
        try:
            yield Sleep(100)
        finally:
            yield Wait(promise)

    @do
    def main():
        yield Spawn(stuck((yield CreatePromise())))
        yield Checkpoint()
        raise ValueError("of the root")

    with pytest.raises(DeadlockError) as caught:
        run(main())
    assert repr(caught.value.__context__) == "ValueError('of the root')"


def test_a_ring_behind_which_many_wait_is_found_and_a_long_queue_is_no_ring():
    @do
    def philosopher(left, right):
        yield WithPermit(left, turn(right))

    @do
    def turn(right):
        yield Checkpoint()
        yield WithPermit(right, Checkpoint())

    @do
    def follow(target):
        yield Wait(target)

    @do
    def main():
        forks = []
        for _ in range(3):
            forks.append((yield CreateSemaphore(1)))
        for i in range(3):
            last = yield Spawn(philosopher(forks[i], forks[(i + 1) % 3]))
        for _ in range(5_000):
            last = yield Spawn(follow(last))
        yield Wait((yield CreatePromise()))

    with pytest.raises(DeadlockError) as caught:
        run(main())
    names = [task.name for cycle in caught.value.cycles for task in cycle]
    assert names == ["philosopher-1", "philosopher-2", "philosopher-3"]
    assert len(caught.value.waiters) == 5_004
