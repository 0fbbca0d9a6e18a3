"""Call functions of the C library that Python doesn't have, such as prctl.

Without the ctypes package, if possible: importing it takes a tenth of the time that an
interpreter takes to start, and the extension module behind it is enough for functions that
take numbers and bytes.
"""

from __future__ import annotations

from typing import Any


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
