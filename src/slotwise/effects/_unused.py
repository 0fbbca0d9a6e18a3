"""The warning of an effect that was made and never yielded: it did nothing.

As that of a coroutine that was never awaited, it names the line where the effect
was dropped, which is where it was made, unless it was kept in a variable of a program:
then it is looked for in the program.
"""

from __future__ import annotations

import sys
import warnings
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from slotwise.effects._tracebacks import innermost, is_internal

if TYPE_CHECKING:
    from slotwise.effects._effects import Effect


def warn_unused(effect: Effect[Any]) -> None:
    """Say that nobody has yielded an effect; called when it is dropped."""
    if sys.is_finalizing():
        return
    filename, line = _place_of(effect, sys._getframe(2))
    message = f"{effect!r} was made and never yielded, so it did nothing"
    warnings.warn_explicit(message, RuntimeWarning, filename, line, source=effect)


def _place_of(effect: Effect[Any], frame: FrameType | None) -> tuple[str, int]:
    while frame is not None:
        if not is_internal(frame.f_code):
            return frame.f_code.co_filename, frame.f_lineno
        if frame.f_code.co_name == "drain":
            # A program has ended, and what was in its variables with it.
            task = frame.f_locals["self"].current
            if task is not None and task._steps is not None:
                code = innermost(task._steps).gi_code
                return code.co_filename, _made_at(effect, code)
        frame = frame.f_back
    return "<unknown>", 0


def _made_at(effect: Effect[Any], code: CodeType) -> int:
    """The line of a program that makes such effects, or its first if there are several."""
    from dis import get_instructions  # seldom needed, and not small

    names = {effect._kind, effect._kind.lower()}  # as in Cancel(task) and task.cancel()
    lines = {
        instruction.positions.lineno
        for instruction in get_instructions(code)
        if instruction.argval in names and instruction.positions is not None
    }
    line = lines.pop() if len(lines) == 1 else None
    return code.co_firstlineno if line is None else line
