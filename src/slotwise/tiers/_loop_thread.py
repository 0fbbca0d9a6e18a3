"""LoopThread: an event loop in a thread of its own, for the waits of plain threads."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from slotwise._core import fork

T = TypeVar("T")


class LoopThread:
    """Started with the first call, anew in a forked child; ends with its owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = fork.new_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started_in = 0  # the process

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` there and block this thread until it has ended.

        If this thread is interrupted, it is cancelled.
        """
        try:
            running = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        except BaseException:
            coroutine.close()  # interrupted; nobody will await it
            raise
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def run_soon(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run ``coroutine`` there, and don't wait for it."""
        asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._started_in != os.getpid():
                self._started_in = os.getpid()
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run, args=(self._loop,), name=self._name, daemon=True
                )
                thread.start()
                weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
