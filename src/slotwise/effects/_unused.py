"""Warn about an effect that was made and never yielded, so that it did nothing.

The warning names the line that made the effect. If the same statement dropped it, that line is
known. Otherwise it is known if Python records the origins of objects (tracemalloc) or of coroutines
(asyncio's debug mode, ``-X dev``), and after the first warning that could not name it: recording it
always would make effects a fifth more expensive. That first warning names the lines of the program
that make such effects.
"""

from __future__ import annotations

import sys
import tracemalloc
import warnings
from itertools import pairwise
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from slotwise.effects._tracebacks import innermost, is_internal

if TYPE_CHECKING:
    from slotwise.effects._effects import Effect

# A file name and a line number.
SourceLine = tuple[str, int]


def warn_unused(effect: Effect[Any]) -> None:
    """Warn that an effect was never yielded; called when it is dropped."""
    if sys.is_finalizing():
        return
    message = f"{effect!r} was made and never yielded, so it did nothing"
    place = _recorded(effect)
    if place is None:
        place, doubt = _guessed(effect, sys._getframe(2))
        if doubt is not None:
            message += doubt
            effect._record_places()
    warnings.warn_explicit(message, RuntimeWarning, *place, source=effect)


def calling_line() -> SourceLine | None:
    """Return the line that makes an effect; called by ``__new__`` of the effect."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_internal(frame.f_code):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _recorded(effect: Effect[Any]) -> SourceLine | None:
    try:
        return effect._made_at
    except AttributeError:
        pass
    traceback = tracemalloc.get_object_traceback(effect)
    if traceback is None:
        return None
    return next(
        ((each.filename, each.lineno) for each in reversed(traceback) if not _is_ours(each)), None
    )


def _is_ours(frame: tracemalloc.Frame) -> bool:
    return frame.filename.startswith(__file__.removesuffix("_unused.py"))


def _guessed(effect: Effect[Any], frame: FrameType | None) -> tuple[SourceLine, str | None]:
    """Return where an effect was made, most likely, and the words for any doubt about it."""
    code: CodeType | None = None
    while frame is not None and code is None:
        if not is_internal(frame.f_code):
            code = frame.f_code
            line = frame.f_lineno
            if line in _lines_making(effect, code) and _is_dropped_at(code, frame.f_lasti):
                return (code.co_filename, line), None
        elif frame.f_code.co_name == "drain":
            # A program has ended, and what was in its variables with it.
            task = frame.f_locals["self"].current
            if task is not None and task._steps is not None:
                code = innermost(task._steps).gi_code
        frame = frame.f_back
    if code is None:
        return ("<unknown>", 0), "; where it was made is unknown"
    lines = _lines_making(effect, code)
    if not lines:
        place = code.co_filename, code.co_firstlineno
        return place, f"; it was dropped in {code.co_name}, and made elsewhere"
    *others, last = lines
    words = f"; it was made on line {', '.join(map(str, others))} or {last}" if others else ""
    return (code.co_filename, lines[0]), words


def _lines_making(effect: Effect[Any], code: CodeType) -> list[int]:
    """Return the lines of a program that make such effects and don't yield them at once."""
    from dis import get_instructions  # rarely needed, and slow to import

    names = {effect._kind, effect._kind.lower()}  # as in Cancel(task) and task.cancel()
    # A call begins where the name of what is called begins.
    begun: set[tuple[int | None, int | None]] = set()
    made: list[int] = []
    for instruction, following in pairwise(get_instructions(code)):
        positions = instruction.positions
        if positions is None or positions.lineno is None:
            continue
        start = positions.lineno, positions.col_offset
        if instruction.argval in names:
            begun.add(start)
        elif instruction.opname == "CALL" and start in begun:
            begun.discard(start)
            if following.opname != "YIELD_VALUE":
                made.append(positions.lineno)
    return sorted({*made})


def _is_dropped_at(code: CodeType, offset: int) -> bool:
    """Whether an instruction drops the value of a statement, instead of storing another one."""
    from dis import get_instructions

    return any(
        instruction.opname == "POP_TOP"
        for instruction in get_instructions(code)
        if instruction.offset == offset
    )
