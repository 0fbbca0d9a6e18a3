"""Gates: one worker's way to its operations, never more in flight than was asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

Tokens = SimpleQueue[None]


def tokens(limit: int, workers: int) -> Tokens | None:
    """Tokens for ``limit`` operations in flight: ``get()`` to go in, ``put(None)`` out.

    A queue in C is ten times cheaper than `threading.Semaphore`, and there are several
    turns per file. None where ``workers`` are too few to need it.
    """
    if workers <= limit:
        return None
    made: Tokens = SimpleQueue()
    for _ in range(limit):
        made.put(None)
    return made


class Limits:
    """What all workers share: how many may scan, how many delete, how many do both in turn.

    A file's age is read just before the file goes. Whoever read it should not find a
    queue at the next gate, so no more have a turn than could delete soon after.
    """

    def __init__(self, scanning: int, deletion: int, workers: int) -> None:
        self.scan = tokens(scanning, workers)
        self.delete = tokens(deletion, workers)
        self.turn = tokens(min(scanning, deletion) + deletion, workers)


class Gates:
    """The same for one worker; each ``…_in`` may wait."""

    __slots__ = ("delete_in", "delete_out", "scan_in", "scan_out", "turn_in", "turn_out")

    def __init__(self, limits: Limits) -> None:
        self.scan_in, self.scan_out = _ends(limits.scan)
        self.delete_in, self.delete_out = _ends(limits.delete)
        self.turn_in, self.turn_out = _ends(limits.turn)


def _nothing() -> None:
    pass


def _ends(shared: Tokens | None) -> tuple[Callable[[], None], Callable[[], None]]:
    if shared is None:
        return _nothing, _nothing
    return shared.get, partial(shared.put, None)
