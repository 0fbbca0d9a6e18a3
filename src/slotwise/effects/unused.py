"""The warning of an effect that was made and never yielded: it did nothing.

As that of a coroutine that was never awaited, it names the line where the effect
was dropped, which is where it was made, unless it was kept in a variable.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any

from slotwise.effects.tracebacks import innermost, is_internal

if TYPE_CHECKING:
    from slotwise.effects.vocabulary import Effect


def warn_unused(effect: Effect[Any]) -> None:
    """Say that nobody has yielded an effect; called when it is dropped."""
    if sys.is_finalizing():
        return
    filename, line = _dropped_at(sys._getframe(2))
    message = f"{effect!r} was made and never yielded, so it did nothing"
    warnings.warn_explicit(message, RuntimeWarning, filename, line, source=effect)


def _dropped_at(frame: FrameType | None) -> tuple[str, int]:
    while frame is not None:
        if not is_internal(frame.f_code):
            return frame.f_code.co_filename, frame.f_lineno
        if frame.f_code.co_name == "drain":
            # A program has ended, and what was in its variables with it.
            task = frame.f_locals["self"].current
            if task is not None and task._steps is not None:
                code = innermost(task._steps).gi_code
                return code.co_filename, code.co_firstlineno
        frame = frame.f_back
    return "<unknown>", 0
