"""Read frames and tracebacks: find the user's lines, and what a task is handling.

This only reads: nothing here changes a task.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import CodeType, GeneratorType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotwise.effects._tasks import Task

_EFFECTS = str(Path(__file__).parent) + os.sep
_SLOTWISE = str(Path(__file__).parent.parent) + os.sep


def is_internal(code: CodeType) -> bool:
    """Whether this is code of slotwise.effects, not of a user's program."""
    return code.co_filename.startswith(_EFFECTS)


def innermost(steps: Any) -> Any:
    """Return the innermost generator, the one that yielded, through any ``yield from``."""
    while isinstance(inner := steps.gi_yieldfrom, GeneratorType):
        steps = inner
    return steps


def trim(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without slotwise's own frames at its outer end.

    An exception passes the scheduler once for each program it leaves. Without
    this, every second line of what the user sees would be the scheduler's.
    """
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_SLOTWISE):
        traceback = traceback.tb_next
    return traceback


def is_handling(task: Task[Any], error: BaseException) -> bool:
    """Whether a task is in an ``except`` or ``finally`` block because of ``error``.

    A suspended generator refers to the exception that it is handling. That is
    the only trace of it: a program that has swallowed the exception and goes on
    looks the same otherwise.
    """
    for steps in [task._steps, *(task._stack or ())]:
        while isinstance(steps, GeneratorType):
            if _refers(gc.get_referents(steps), error) > _refers(_variables(steps), error):
                return True
            steps = steps.gi_yieldfrom
    return False


def _variables(steps: GeneratorType[Any, Any, Any]) -> list[object]:
    """Return what a generator's variables refer to: keeping an exception is not handling it."""
    frame = steps.gi_frame
    if frame is None:
        return []
    code = frame.f_code
    in_cells = {*code.co_cellvars, *code.co_freevars}  # which it doesn't refer to itself
    return [value for name, value in frame.f_locals.items() if name not in in_cells]


def _refers(objects: list[Any], error: BaseException) -> int:
    """Count those that are the exception, or one that was raised while it was handled."""
    return sum(
        isinstance(held, BaseException) and any(e is error for e in _chain(held))
        for held in objects
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception, its causes and contexts, and theirs."""
    found: dict[int, BaseException] = {}
    to_do: list[BaseException | None] = [error]
    while to_do:
        one = to_do.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            to_do += [one.__context__, one.__cause__]
    return list(found.values())
