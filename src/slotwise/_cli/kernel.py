"""Ask the system for what Python doesn't have: C functions, and waits for any descriptor."""

from __future__ import annotations

import ctypes
import select


def call(name: str, *args: int | bytes) -> int:
    """Call a function of the C library that returns an int, such as prctl."""
    result: int = ctypes.CDLL(None)[name](*args)
    return result


def readable(*descriptors: int, timeout: float | None = None) -> set[int]:
    """Return those that can be read, once there are some or ``timeout`` seconds are over.

    ``select.select`` refuses numbers from 1,024 on, which a process with many connections has.
    """
    poller = select.poll()
    for each in descriptors:
        poller.register(each, select.POLLIN)
    return {fd for fd, _ in poller.poll(None if timeout is None else timeout * 1000)}
