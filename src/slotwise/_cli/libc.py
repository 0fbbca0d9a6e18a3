"""Call functions of the C library that Python doesn't have, such as prctl."""

from __future__ import annotations

import ctypes


def call(name: str, *args: int | bytes) -> int:
    """Call a function that returns an int."""
    result: int = ctypes.CDLL(None)[name](*args)
    return result
