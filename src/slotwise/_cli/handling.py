"""Handle signals for a while: what commands that are ended by one have in common."""

from __future__ import annotations

import signal
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
