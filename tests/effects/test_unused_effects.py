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


def test_one_that_is_kept_in_a_variable_is_reported_where_it_is_dropped():
    @do
    def program():
        kept = Sleep(5)
        yield Checkpoint()
        kept = None  # dropped
        yield Sleep(1)
        assert kept is None

    ((_, line),) = unused_of(program())
    assert line == line_of(program, "# dropped")


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
