"""The document's own surface: its examples run as they read."""

# ruff: noqa: PERF401 - a yield can't stand in a comprehension

from __future__ import annotations

import pytest

from slotwise.effects import (
    AcquireSemaphore,
    Checkpoint,
    CreateSemaphore,
    Gather,
    ReleaseSemaphore,
    Semaphore,
    Spawn,
    Wait,
    do,
    run,
)


@do
def with_mutex(sem, update):
    yield AcquireSemaphore(sem)
    try:
        return (yield update())
    finally:
        yield ReleaseSemaphore(sem)


def test_the_mutex_example_runs():
    @do
    def critical_update():
        yield Checkpoint()
        return "updated"

    @do
    def program():
        sem = yield CreateSemaphore(1)
        return (yield with_mutex(sem, critical_update))

    assert run(program()) == "updated"


def test_the_pool_example_runs_with_a_for_loop_and_is_bounded():
    inside, most = 0, 0

    @do
    def call():
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        yield Checkpoint()
        inside -= 1
        return most

    @do
    def run_batch(calls):
        sem = yield CreateSemaphore(8)
        tasks = []
        for each in calls:
            tasks.append((yield Spawn(with_mutex(sem, each))))
        return (yield Gather(*[Wait(t) for t in tasks]))

    results = run(run_batch([call] * 50))
    assert len(results) == 50
    assert most == 8


def test_any_task_may_release_what_is_outstanding_and_over_release_raises():
    """'Semaphores do not track permit ownership', and 'more times than acquired raises'."""

    @do
    def releaser(sem):
        yield ReleaseSemaphore(sem)

    @do
    def program():
        sem = yield CreateSemaphore(1)
        for _ in range(3):
            yield AcquireSemaphore(sem)
            yield Wait((yield Spawn(releaser(sem))))
        with pytest.raises(RuntimeError):
            yield ReleaseSemaphore(sem)
        assert sem.owned is False

    run(program())


def test_an_async_def_is_refused_when_it_is_decorated():
    async def coroutine():
        pass

    async def stream():
        yield

    for function in (coroutine, stream):
        with pytest.raises(TypeError, match=rf"{function.__name__} is an async def.*Await"):
            do(function)


def test_a_program_can_be_run_again():
    @do
    def program(start):
        total = start
        for _ in range(3):
            yield Checkpoint()
            total += 1
        return total

    made = program(4)
    assert run(made) == run(made) == 7


def test_a_function_without_yield_is_a_program_too():
    @do
    def plain(value):
        return value * 2

    @do
    def outer():
        return (yield plain(21))

    assert run(plain(4)) == 8
    assert run(outer()) == 42


def test_a_do_function_keeps_its_name_and_works_as_a_method():
    class Bank:
        balance = 3

        @do
        def read(self):
            """The balance."""
            yield Checkpoint()
            return self.balance

    assert Bank.read.__name__ == "read"
    assert Bank.read.__doc__ == "The balance."
    assert run(Bank().read()) == 3


@pytest.mark.parametrize("permits", [0, -1, -100])
def test_too_few_permits_are_a_value_error_at_the_yield(permits):
    @do
    def program():
        try:
            yield CreateSemaphore(permits)
        except ValueError as error:
            return str(error)

    assert str(permits) in run(program())


@pytest.mark.parametrize("permits", [True, False, 1.0, "1", None])
def test_permits_that_are_not_an_int_are_a_type_error_at_the_yield(permits):
    @do
    def program():
        try:
            yield CreateSemaphore(permits)
        except TypeError:
            return "caught"

    assert run(program()) == "caught"


def test_an_uncaught_argument_error_leaves_run_with_the_users_line():
    @do
    def program():
        yield CreateSemaphore(0)

    with pytest.raises(ValueError, match="at least 1") as caught:
        run(program())
    assert "yield CreateSemaphore(0)" in str(caught.traceback[-1].statement)


def test_semaphores_are_named_in_order_unless_they_have_a_name():
    @do
    def program():
        names = []
        for name in (None, "mine", None):
            names.append((yield CreateSemaphore(1, name)).name)
        return names

    assert run(program()) == ["semaphore-1", "mine", "semaphore-2"]
    assert run(program()) == ["semaphore-1", "mine", "semaphore-2"]


def test_a_handle_cannot_be_made_by_hand():
    for arguments in [(), (1,), ("name", 1)]:
        with pytest.raises(TypeError, match="CreateSemaphore"):
            Semaphore(*arguments)


def test_run_says_when_it_is_given_no_program():
    @do
    def program():
        yield Checkpoint()

    with pytest.raises(TypeError, match="call program"):
        run(program)
    with pytest.raises(TypeError, match="run takes a program"):
        run(5)


def test_a_single_effect_is_a_program():
    assert run(CreateSemaphore(2)).permits == 2


@pytest.mark.parametrize(
    "make", [lambda: 5, lambda: Checkpoint, lambda: with_mutex, lambda: (x for x in ())]
)
def test_yielding_anything_else_is_a_type_error_at_the_yield(make):
    @do
    def program():
        yield make()

    with pytest.raises(TypeError, match="can yield effects and programs, not"):
        run(program())
