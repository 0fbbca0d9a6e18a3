"""run: order, time, steps, tracebacks and depth."""

# ruff: noqa: PERF401 - a yield can't stand in a comprehension

from __future__ import annotations

import traceback

import pytest

from slotwise.effects import (
    AcquireSemaphore,
    Await,
    Checkpoint,
    CreateSemaphore,
    Gather,
    Now,
    ReleaseSemaphore,
    Sleep,
    Spawn,
    StepLimitExceeded,
    TaskCancelledError,
    Wait,
    do,
    run,
)


@do
def walker(name, log, steps=3):
    for step in range(steps):
        log.append(f"{name}{step}")
        yield Checkpoint()


@do
def walk(log):
    yield Gather(*[walker(name, log) for name in "abc"])


def test_without_a_seed_tasks_take_turns():
    log = []
    run(walk(log))
    assert log == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_seed_draws_the_same_order_each_time_and_seeds_differ():
    orders = []
    for seed in [*range(20), *range(20), "text"]:
        log = []
        run(walk(log), seed=seed)
        orders.append(tuple(log))
    assert orders[:20] == orders[20:40]
    assert len(set(orders[:20])) > 10


def test_sleepers_wake_in_the_order_of_their_times_and_sleep_zero_switches():
    log = []

    @do
    def sleeper(seconds):
        yield Sleep(seconds)
        log.append(seconds)

    @do
    def program():
        task = yield Spawn(walker("w", log, 1))
        yield Sleep(0)
        log.append("zero")
        yield Gather(*[sleeper(s) for s in (3, 1, 2, 0.5, 1)])
        yield Wait(task)

    run(program())
    assert log == ["w0", "zero", 0.5, 1, 1, 2, 3]


@pytest.mark.parametrize("seconds", [-1, None, "1", True, float("nan"), float("inf")])
def test_impossible_sleeps_are_refused_at_the_yield(seconds):
    @do
    def program():
        with pytest.raises((TypeError, ValueError)):
            yield Sleep(seconds)

    run(program())


def test_cancelled_sleeps_do_not_move_the_clock():
    @do
    def program():
        tasks = []
        for _ in range(1000):
            tasks.append((yield Spawn(Sleep(1000))))
        yield Checkpoint()
        for task in tasks:
            yield task.cancel()
        yield Sleep(5)
        return (yield Now())

    assert run(program()) == 5


def test_trace_sees_every_step_with_its_task_and_effect():
    seen = []

    @do
    def child():
        yield Sleep(1)

    @do
    def program():
        sem = yield CreateSemaphore(1, "mutex")
        yield AcquireSemaphore(sem)
        yield ReleaseSemaphore(sem)
        task = yield Spawn(child())
        yield Wait(task)

    run(program(), trace=lambda step, task, effect: seen.append((step, task.name, repr(effect))))
    assert seen == [
        (1, "program", "CreateSemaphore(1)"),
        (2, "program", "AcquireSemaphore(mutex)"),
        (3, "program", "ReleaseSemaphore(mutex)"),
        (4, "program", "Spawn(child())"),
        (5, "program", "Wait(child-1)"),
        (6, "child-1", "Sleep(1)"),
    ]


def test_what_trace_raises_leaves_run_after_the_finally_blocks():
    log = []

    @do
    def program():
        try:
            yield Checkpoint()
            yield Checkpoint()
        finally:
            log.append("finally")

    def trace(step, task, effect):
        if step == 2:
            raise KeyError("trace")

    with pytest.raises(KeyError, match="trace"):
        run(program(), trace=trace)
    assert log == ["finally"]


def test_too_many_steps_are_stopped_and_unwound():
    log = []

    @do
    def endless():
        try:
            while True:
                yield Checkpoint()
        finally:
            yield Checkpoint()
            log.append("finally")

    @do
    def program():
        yield Gather(endless(), endless())

    with pytest.raises(StepLimitExceeded, match="100"):
        run(program(), max_steps=100)
    assert log == ["finally", "finally"]
    assert issubclass(StepLimitExceeded, RuntimeError)


def test_endless_recursion_is_stopped_by_max_steps():
    @do
    def deeper():
        yield deeper()

    with pytest.raises(StepLimitExceeded):
        run(deeper(), max_steps=1000)


def test_a_task_that_refuses_to_unwind_is_closed_in_the_end():
    @do
    def stubborn():
        while True:
            try:
                yield Checkpoint()
            except TaskCancelledError:
                pass

    with pytest.raises(StepLimitExceeded):
        run(stubborn(), max_steps=100)


def test_max_steps_must_be_a_count():
    for wrong, error in [(0, ValueError), (1.5, TypeError), (True, TypeError)]:
        with pytest.raises(error):
            run(Checkpoint(), max_steps=wrong)


@do
def inner_failure():
    yield Checkpoint()
    raise KeyError("deep")  # the line that fails


@do
def middle():
    yield inner_failure()  # the line in the middle


@do
def outer():
    yield middle()  # the outermost line


def test_the_traceback_shows_the_users_lines_and_none_of_the_schedulers_between():
    with pytest.raises(KeyError) as caught:
        run(outer())
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame.line for frame in frames if frame.filename == __file__]
    assert ours[1:] == [
        "yield middle()  # the outermost line",
        "yield inner_failure()  # the line in the middle",
        'raise KeyError("deep")  # the line that fails',
    ]
    names = [frame.name for frame in frames]
    assert names[-3:] == ["outer", "middle", "inner_failure"]


def test_the_traceback_of_a_task_shows_where_it_failed_and_where_it_was_waited_for():
    @do
    def program():
        task = yield Spawn(outer())
        yield Wait(task)  # waited for here

    with pytest.raises(KeyError) as caught:
        run(program())
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "yield Wait(task)  # waited for here" in lines
    assert lines[-1] == 'raise KeyError("deep")  # the line that fails'


def test_wrong_arguments_of_a_program_are_raised_at_its_yield():
    @do
    def program():
        with pytest.raises(TypeError):
            yield walker("too", "few", 3, 4, 5)
        with pytest.raises(TypeError):
            yield Spawn(walker("too", "few", 3, 4, 5))
        return "caught"

    assert run(program()) == "caught"


def test_await_needs_run_async():
    async def coroutine():
        pass

    @do
    def program():
        with pytest.raises(RuntimeError, match="run_async"):
            yield Await(coroutine())

    run(program())


def test_keyboard_interrupt_leaves_run_after_the_finally_blocks():
    log = []

    @do
    def sleeping():
        try:
            yield Sleep(100)
        finally:
            log.append("finally")

    @do
    def interrupted():
        yield Checkpoint()
        raise KeyboardInterrupt

    @do
    def program():
        yield Spawn(sleeping())
        yield Spawn(interrupted())
        yield Sleep(100)

    with pytest.raises(KeyboardInterrupt):
        run(program())
    assert log == ["finally"]
