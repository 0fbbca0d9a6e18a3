"""Limits over a whole purge: the most deletions in total, and per second.

Each is exact, however many threads use it. Operations in flight are limited in `_gates`.

Neither is one of slotwise's own limits. A cap counts successes, and its waiters learn when
the last one has been used; a semaphore counts what is held. Our rates need asyncio even in threads,
and importing it makes a purge start more than half as slowly again.
"""

from __future__ import annotations

import threading
import time


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
