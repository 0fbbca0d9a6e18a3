"""Handle signals for a while: what commands that are ended by one have in common."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def handling(handle: Callable[[int], object], *numbers: int) -> Iterator[None]:
    """Call ``handle`` at these signals, instead of what they do otherwise."""
    before = {each: signal.signal(each, lambda number, _: handle(number)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_on_signals() -> Iterator[threading.Event]:
    """Yield an event, which SIGINT, SIGTERM or SIGHUP sets instead of ending the process."""
    ended = threading.Event()
    with handling(lambda _: ended.set(), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield ended
