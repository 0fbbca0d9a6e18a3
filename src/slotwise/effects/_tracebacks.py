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
            if any(_comes_from(held, error) for held in gc.get_referents(steps)):
                return True
            steps = steps.gi_yieldfrom
    return False


def _comes_from(held: object, error: BaseException) -> bool:
    """Whether this is the exception, or one that was raised while it was handled."""
    while isinstance(held, BaseException):
        if held is error:
            return True
        held = held.__context__
    return False
