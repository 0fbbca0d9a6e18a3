"""Lost: the flag that tells a holder that its acquisition has ended without a release.

It is set at most once; threads and tasks of any event loop can wait for it. When it is
set is up to the drivers.
"""

from __future__ import annotations

import _thread
from collections.abc import Generator
from typing import TYPE_CHECKING

from slotwise._core import fork
from slotwise._core.running_loop import running_loop

if TYPE_CHECKING:
    import asyncio

# One lock for all: it is held for a few instructions, and only when somebody waits or loses.
# Not the lock of sections: drivers use a `lost` under locks that are taken inside a section.
# Re-entrant: a garbage collection while it is held may end another wait.
_lock = fork.new_lock()


class Lost:
    """Set once an acquisition was lost, or its ttl has ended; never by a release.

    ``await acquired.lost`` waits for it in an event loop, ``wait`` in a thread.
    """

    __slots__ = ("_futures", "_reason", "_sleepers")

    def __init__(self) -> None:
        self._reason: str | None = None
        # A lock for each waiting thread. Not one Event for all of them: its inner lock may be
        # held by a thread that doesn't exist in a forked child.
        self._sleepers: list[_thread.LockType] = []
        self._futures: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why it was set; None while it is not."""
        return self._reason

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the acquisition is lost; False after ``timeout`` seconds."""
        sleeper = _thread.allocate_lock()
        sleeper.acquire()
        with _lock:
            if self._reason is not None:
                return True
            self._sleepers.append(sleeper)
        try:
            if timeout is None:
                sleeper.acquire()
            else:
                sleeper.acquire(timeout=max(timeout, 0.0))
        finally:
            with _lock:
                if sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)
        return self._reason is not None

    def __await__(self) -> Generator[object, None, None]:
        future: asyncio.Future[None]
        loop = running_loop()
        if loop is not None:
            future = loop.create_future()
        else:
            from slotwise._core.trio_run import running_trio

            future = running_trio().create_future()
        with _lock:
            if self._reason is not None:
                return
            self._futures.append(future)
        try:
            yield from future.__await__()
        finally:
            with _lock:
                if future in self._futures:
                    self._futures.remove(future)

    def __bool__(self) -> bool:
        return self.is_set()

    def __repr__(self) -> str:
        return f"<Lost: {'not set' if self._reason is None else self._reason}>"

    def set(self, reason: str) -> bool:
        """Set the flag, for drivers; False if it was set."""
        with _lock:
            if self._reason is not None:
                return False
            self._reason = reason
            sleepers, futures = self._sleepers, self._futures
            self._sleepers, self._futures = [], []
        for sleeper in sleepers:
            sleeper.release()
        for future in futures:
            try:
                future.get_loop().call_soon_threadsafe(_open, future)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                pass
        return True


def _open(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
