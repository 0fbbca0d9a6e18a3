"""Gates and caps: the limits on operations in flight, in total and per second.

This doesn't use slotwise's own semaphores, for two measured reasons (`make bench ARGS=purge`).
Entering and leaving through a queue in C costs a twentieth of what a `MemorySemaphore` costs, and
happens twice per file. And `slotwise.memory` needs asyncio: importing it makes the start of a purge
take more than half as long again, and for a small tree the start is most of the purge. A gate
doesn't need what those semaphores offer beyond a number (owners, a ttl, timeouts, resizing). The
limit that several machines share is one of ours, in `_shared_limit`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue


class Gate:
    """A limit on operations in flight: ``enter`` may wait, ``leave`` never does."""

    __slots__ = ("_limit", "_tokens", "enter", "leave")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tokens: SimpleQueue[None] = SimpleQueue()
        for _ in range(limit):
            self._tokens.put(None)
        self.enter: Callable[[], None] = self._tokens.get
        self.leave: Callable[[], None] = partial(self._tokens.put, None)

    @property
    def in_flight(self) -> int:
        return self._limit - self._tokens.qsize()


class Gates:
    """The gates that all workers share: for scanning, for deleting, and for doing both.

    A file's age is read just before it is deleted. A worker that has read it should not find a
    queue at the next gate, so ``work`` admits no more workers than could delete soon after.
    """

    def __init__(self, scanning: int, deletion: int, workers: int) -> None:
        # Neither of these ever admits more than there are workers.
        self.scan = Gate(min(scanning, workers))
        self.delete = Gate(min(deletion, workers))
        self.scan_in, self.scan_out = self.scan.enter, self.scan.leave
        self.delete_in, self.delete_out = self.delete.enter, self.delete.leave
        self.work = Gate(min(scanning, deletion) + deletion)

    @property
    def in_flight(self) -> int:
        return self.scan.in_flight + self.delete.in_flight


class Cap:
    """The most deletions in total; 0 means unlimited.

    A worker that asks while the last deletions are under way waits to see whether they succeed, so
    that the cap is reached exactly.
    """

    # Between any two calls:
    #   C1  confirmed + under_way <= most, if there is a cap

    def __init__(self, most: int) -> None:
        self.most = most
        self.confirmed = 0
        self._under_way = 0
        self._changed = threading.Condition()

    @property
    def reached(self) -> bool:
        return bool(self.most) and self.confirmed >= self.most

    def reserve(self) -> bool:
        """Reserve one deletion, to be ended with `finish`; return False if the cap is reached."""
        if not self.most:
            return True
        with self._changed:
            while self.confirmed + self._under_way >= self.most:
                if self.confirmed >= self.most:
                    return False
                self._changed.wait()
            self._under_way += 1
            return True

    def finish(self, *, done: bool) -> None:
        """End a reserved deletion, which counts only if it is done."""
        if not self.most:
            return
        with self._changed:
            self._under_way -= 1
            self.confirmed += done
            self._changed.notify_all()


class Pace:
    """The most deletions per second, evenly spaced."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._lock = threading.Lock()
        self._next = 0.0
        self._stopped = threading.Event()

    def wait(self) -> bool:
        """Wait until the next deletion is due, unless stopped; return whether that took time."""
        with self._lock:
            now = time.monotonic()
            due = max(now, self._next)
            self._next = due + self._interval
        if due <= now:
            return False
        self._stopped.wait(due - now)
        return True

    def stop(self) -> None:
        self._stopped.set()
