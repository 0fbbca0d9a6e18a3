"""Effects that were made and never yielded: a RuntimeWarning with its line."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import warnings
from dataclasses import dataclass

import pytest

from slotwise.effects import (
    AcquireSemaphore,
    Cancel,
    Checkpoint,
    CreateSemaphore,
    Effect,
    Gather,
    Race,
    ReleaseSemaphore,
    Sleep,
    Spawn,
    Try,
    Wait,
    WithPermit,
    do,
    run,
)


@dataclass(frozen=True)
class Fetch(Effect):
    url: str


def unused_of(program, **options):
    """The texts and lines of the warnings of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(program, **options)
        gc.collect()
    assert all(warning.category is RuntimeWarning for warning in caught)
    assert all(warning.filename == __file__ for warning in caught)
    return [(str(warning.message), warning.lineno) for warning in caught]


def line_of(function, text):
    lines, first = inspect.getsourcelines(function.__wrapped__)
    return next(first + i for i, line in enumerate(lines) if text in line)


def test_a_cancel_without_yield_is_a_warning_with_its_line():
    @do
    def program():
        task = yield Spawn(Sleep(1), name="sleeper")
        task.cancel()  # forgotten
        yield Wait(task)

    ((text, line),) = unused_of(program())
    assert text == "Cancel(sleeper) was made and never yielded, so it did nothing"
    assert line == line_of(program, "# forgotten")


def test_every_kind_of_effect_is_watched():
    @do
    def program():
        sem = yield CreateSemaphore(1, "pool")
        AcquireSemaphore(sem)
        ReleaseSemaphore(sem)
        Checkpoint()
        Sleep(1)
        Fetch("page")

    names = [text.split("(")[0] for text, _ in unused_of(program())]
    assert names == ["AcquireSemaphore", "ReleaseSemaphore", "Checkpoint", "Sleep", "Fetch"]


def test_what_is_inside_an_unused_effect_is_not_reported_as_well():
    @do
    def program():
        yield Checkpoint()
        Gather(Sleep(1), Race(Sleep(2), Sleep(3)))
        Spawn(Sleep(1))

    assert [text.split("(")[0] for text, _ in unused_of(program())] == ["Gather", "Spawn"]


def test_one_that_is_kept_in_a_variable_is_looked_for_in_the_program():
    @do
    def program():
        kept = Sleep(5)  # made
        yield Checkpoint()
        assert kept

    @do
    def cancelling():
        task = yield Spawn(Checkpoint())
        kept = task.cancel()  # made
        yield Wait(task)
        assert kept

    for each in (program, cancelling):
        ((_, line),) = unused_of(each())
        assert line == line_of(each, "# made")


@pytest.fixture(autouse=True)
def nothing_recorded():
    """Each test is the first of its process to see such a warning."""
    yield
    if "__new__" in Effect.__dict__:  # once set, CPython can't do without one
        Effect.__new__ = lambda kind, *_args, **_options: object.__new__(kind)


@do
def twice():
    kept = Sleep(5)  # first
    also = Sleep(6)
    yield kept
    assert also


@do
def replaced():
    kept = Sleep(5)  # first
    yield Checkpoint()
    kept = None
    yield Sleep(1)
    assert kept is None


def helper():
    return Sleep(5)


@do
def by_a_helper():
    helper()
    yield Sleep(1)


def test_those_that_are_yielded_at_once_are_not_taken_for_the_one_that_is_not():
    ((_, line),) = unused_of(replaced())
    assert line == line_of(replaced, "# first")


def test_where_it_could_have_been_made_on_several_lines_all_are_named_and_the_next_time_one():
    first = line_of(twice, "# first")
    text = "Sleep(6) was made and never yielded, so it did nothing"
    doubt = f"; it was made on line {first} or {first + 1}"
    assert unused_of(twice()) == [(text + doubt, first)]
    assert unused_of(twice()) == [(text, first + 1)]


def test_one_that_was_made_elsewhere_is_not_said_to_be_made_where_it_was_dropped():
    ((text, line),) = unused_of(by_a_helper())
    assert "; it was dropped in by_a_helper, and made elsewhere" in text
    assert line == by_a_helper.__wrapped__.__code__.co_firstlineno
    assert unused_of(by_a_helper())[0][1] == helper.__code__.co_firstlineno + 1


@pytest.mark.parametrize("switch", ["tracemalloc", "dev"])
def test_where_python_records_origins_the_line_is_exact(switch, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\n"
        "from slotwise.effects import Sleep, do, run, run_async\n"
        "def helper():\n"
        "    return Sleep(5)\n"
        "@do\n"
        "def program():\n"
        "    kept = Sleep(1)\n"
        "    also = Sleep(2)\n"
        "    helper()\n"
        "    yield kept\n"
        "    assert also\n"
        "asyncio.run(run_async(program()))\n"
    )
    command = [sys.executable, "-X", switch, "-W", "error::DeprecationWarning", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line, effect in ((4, "Sleep(5)"), (8, "Sleep(2)")):
        text = f"{program}:{line}: RuntimeWarning: {effect} was made and never yielded, so it did"
        assert f"{text} nothing\n" in done.stderr


def test_an_effect_made_outside_of_any_run_is_reported_when_it_is_dropped():
    with pytest.warns(RuntimeWarning, match=r"Sleep\(1\) was made and never yielded") as caught:
        Sleep(1)
    assert caught[0].filename == __file__


def test_effects_that_are_yielded_or_handed_over_are_not_reported():
    @do
    def fetch(effect):
        yield Sleep(1)
        return effect.url

    @do
    def program():
        sem = yield CreateSemaphore(1)
        again = Checkpoint()
        for _ in range(3):
            yield again
        yield AcquireSemaphore(sem)
        waiting = yield Spawn(WithPermit(sem, Sleep(1)))
        never_begins = yield Spawn(Sleep(1))
        yield Cancel(never_begins)
        yield Checkpoint()
        yield waiting.cancel()  # before it came to its Sleep
        yield ReleaseSemaphore(sem)
        yield Try(AcquireSemaphore(sem, timeout=1))
        yield ReleaseSemaphore(sem)
        yield Gather(Sleep(1), Fetch("a"), Wait((yield Spawn(Sleep(1)))))
        yield Race(Sleep(1), Sleep(2))
        with pytest.raises(TypeError):
            yield Gather(5, Sleep(1))
        yield from (effect for effect in [Fetch("b")])

    assert unused_of(program(), handlers={Fetch: fetch}) == []
    assert unused_of(Checkpoint()) == []


def test_effects_that_live_until_the_interpreter_ends_are_no_matter():
    code = "import builtins, slotwise.effects as e; builtins.kept = e.Checkpoint()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
