"""Call functions of the C library that Python doesn't have, such as prctl.

Without the ctypes package, if possible: importing it takes a tenth of the time that an
interpreter takes to start, and the extension module behind it is enough for functions that
take numbers and bytes.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would be slow, too
    from typing import Any, NoReturn


def call(name: str, *args: int | bytes) -> int:
    """Call a function that returns an int."""
    try:
        from _ctypes import call_function, dlopen, dlsym
    except ImportError:  # not CPython
        import ctypes

        result: int = getattr(ctypes.CDLL(None), name)(*args)
        return result
    everything: Any = None  # all loaded libraries, the C library included
    called: int = call_function(dlsym(dlopen(everything, 0), name), args)
    return called


def exit_now(code: int) -> NoReturn:
    """Exit as a C program does, with the exit handlers of the C libraries.

    No other Python thread runs meanwhile, and Python frees nothing.
    """
    try:
        from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_PYTHONAPI, CFuncPtr, dlopen, dlsym
    except ImportError:  # not CPython
        os._exit(code)

    class Function(CFuncPtr):
        _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI  # which keeps the interpreter's lock

    everything: Any = None
    Function(dlsym(dlopen(everything, 0), "exit"))(code)
    os._exit(code)  # not reached
