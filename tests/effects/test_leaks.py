"""What a run leaves behind: leaks are named, dropped semaphores cost nothing."""

from __future__ import annotations

import gc
import linecache
import warnings

import pytest

from slotwise.effects import (
    AcquireSemaphore,
    Cancel,
    Checkpoint,
    CreateSemaphore,
    PermitLeakWarning,
    ReleaseSemaphore,
    Sleep,
    Spawn,
    TransferPermit,
    Try,
    TryAcquire,
    Wait,
    do,
    run,
)


def leaks_of(program):
    """The leak warnings of a run, oldest acquire first."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(program)
    assert all(issubclass(warning.category, PermitLeakWarning) for warning in caught)
    return caught


def line_of(function, text):
    """The number of the line of a @do function on which a text stands."""
    code = function.__wrapped__.__code__
    lines = linecache.getlines(code.co_filename)
    for number in range(code.co_firstlineno, len(lines) + 1):
        if text in lines[number - 1]:
            return number
    raise AssertionError(text)


@do
def careless(sem):
    yield Checkpoint()
    yield AcquireSemaphore(sem)  # first
    yield AcquireSemaphore(sem, 2)  # second


def test_each_leaked_acquire_is_one_warning_with_semaphore_task_and_line():
    @do
    def program():
        sem = yield CreateSemaphore(5, "pool")
        task = yield Spawn(careless(sem), name="worker")
        yield Wait(task)

    first, second = leaks_of(program())
    for warning, mark, permits in [(first, "# first", "1 permit"), (second, "# second", "2 perm")]:
        line = line_of(careless, mark)
        text = str(warning.message)
        assert permits in text
        assert "'pool'" in text
        assert "'worker'" in text
        assert f"{__file__}:{line}" in text
        assert (warning.filename, warning.lineno) == (__file__, line)


def test_leaks_of_tasks_that_failed_or_were_cancelled_are_found():
    @do
    def failing(sem):
        yield AcquireSemaphore(sem)
        raise KeyError

    @do
    def sleeping(sem):
        yield AcquireSemaphore(sem)
        yield Sleep(100)

    @do
    def program():
        sem = yield CreateSemaphore(5)
        failed = yield Spawn(failing(sem), name="failed")
        cancelled = yield Spawn(sleeping(sem), name="cancelled")
        yield Spawn(sleeping(sem), name="left")
        yield Checkpoint()
        yield Try(Wait(failed))
        yield Cancel(cancelled)

    assert sorted(str(w.message).split("'")[3] for w in leaks_of(program())) == [
        "cancelled",
        "failed",
        "left",
    ]


def test_a_leak_by_way_of_try_or_a_handover_names_the_users_line():
    @do
    def taker():
        yield Sleep(1)

    @do
    def program():
        sem = yield CreateSemaphore(3)
        yield Try(AcquireSemaphore(sem))  # tried
        yield TryAcquire(sem)  # tries
        task = yield Spawn(taker(), name="taker")
        yield AcquireSemaphore(sem)  # handed on
        yield TransferPermit(sem, task)
        yield Wait(task)

    found = {(w.lineno, str(w.message).split("'")[3]) for w in leaks_of(program())}
    assert found == {
        (line_of(program, "# tried"), "program"),
        (line_of(program, "# tries"), "program"),
        (line_of(program, "# handed on"), "taker"),
    }


def test_a_failing_run_keeps_its_own_error_where_warnings_are_errors():
    @do
    def program():
        sem = yield CreateSemaphore(1, "mutex")
        yield AcquireSemaphore(sem)
        raise KeyError("the real problem")

    with pytest.raises(KeyError, match="the real problem") as caught:
        run(program())
    assert "'mutex'" in caught.value.__notes__[0]


def test_a_run_that_leaks_raises_where_warnings_are_errors():
    @do
    def program():
        sem = yield CreateSemaphore(3)
        yield AcquireSemaphore(sem)
        yield AcquireSemaphore(sem)

    with pytest.raises(PermitLeakWarning) as caught:
        run(program())
    assert len(caught.value.__notes__) == 1


def test_semaphores_made_and_dropped_cost_nothing():
    @do
    def contender(sem):
        yield AcquireSemaphore(sem)
        yield ReleaseSemaphore(sem)

    @do
    def program(contended):
        growth = None
        for _ in range(2):  # the first fills caches and free lists
            gc.collect()
            before = len(gc.get_objects())
            for _ in range(3000):
                sem = yield CreateSemaphore(2)
                yield AcquireSemaphore(sem)
                yield AcquireSemaphore(sem)
                if contended:
                    task = yield Spawn(contender(sem))
                    yield Checkpoint()
                    yield ReleaseSemaphore(sem)
                    yield Wait(task)
                    yield ReleaseSemaphore(sem)
                else:
                    yield ReleaseSemaphore(sem, 2)
            del sem
            growth = len(gc.get_objects()) - before
        return growth

    few = 1000  # objects of threads that other tests left behind; each semaphore would be several
    gc.disable()  # it must not need the collector
    try:
        assert run(program(False)) < few
        assert run(program(True)) < few
    finally:
        gc.enable()


def test_the_line_of_an_acquire_is_found_through_yield_from():
    def take(sem):
        yield AcquireSemaphore(sem)

    @do
    def main():
        sem = yield CreateSemaphore(1)
        yield from take(sem)

    with pytest.warns(PermitLeakWarning) as caught:
        run(main())
    assert caught[0].lineno == take.__code__.co_firstlineno + 1
