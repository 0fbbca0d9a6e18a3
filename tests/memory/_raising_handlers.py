"""Interrupts: a signal handler that raises, made to do so at any chosen instant."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import slotwise

HOME = slotwise.__path__[0]

# CPython runs signal handlers after these: at the start of a function, and after a call or a
# pass of a loop.
_CHECKS_SIGNALS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")


class Interrupt(BaseException):
    """What the signal handler raises."""


_instructions: dict[int, dict[int | None, str]] = {}  # by the id of their code


def _may_be_interrupted(frame: FrameType, latest: dict[int, int]) -> bool:
    code = frame.f_code
    names = _instructions.get(id(code))  # to hash the code itself would take long
    if names is None:
        names = {each.offset: each.opname for each in dis.get_instructions(code)}
        _instructions[id(code)] = names = {None: "RESUME", **names}
    before = names.get(latest.get(id(frame)), "")
    latest[id(frame)] = frame.f_lasti
    return before in _CHECKS_SIGNALS


def _apart(call: Callable[[], object]) -> Iterator[object]:
    """Make a call in a generator, which has a handled exception of its own.

    An interrupt at the end of an `except` leaves the exception there as the one that is being
    handled: it would be the context of whatever later tests raise.
    """
    yield call()


def interrupted(number: int, call: Callable[[], object], *, everywhere: bool = True) -> bool:
    """Make a call and raise before its so-manieth bytecode; False if it has fewer.

    Unless ``everywhere``, those are counted before which a signal handler may be run.
    """
    count = 0
    latest: dict[int, int] = {}  # by the id of the frame, which is not to be kept

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True  # in every frame: 3.13 forgets it otherwise
        if event == "call":
            latest.pop(id(frame), None)
        elif event == "opcode" and frame.f_code.co_filename.startswith(HOME):
            count += everywhere or _may_be_interrupted(frame, latest)
            if count == number:
                raise Interrupt
        return trace

    before = sys.gettrace()
    # Python 3.12 reports bytecodes only if a frame has asked for them before tracing begins.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        next(_apart(call))
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
    return count >= number
