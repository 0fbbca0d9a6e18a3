"""LoopThread: an event loop in another thread, which runs coroutines for plain threads.

A wait in a plain thread can't be interrupted; a coroutine can be cancelled. What is waited for
is up to the caller.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from slotwise._core import fork

T = TypeVar("T")


class LoopThread:
    """Started with the first call, anew in a forked child; ends with its owner.

    Args:
        name: of the thread.
        loop: a running loop to use instead of one of our own.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._name = name
        self._given = loop
        self._lock = fork.new_lock()  # re-entrant: a garbage collection may stop it anywhere
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started_in = 0  # the pid of that process
        self._end: weakref.finalize[[asyncio.AbstractEventLoop], LoopThread] | None = None
        self._calls: set[_CoroutineCall] = set()
        self._stopped = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return or raise what ``work`` does, blocking this thread until it has ended.

        If this thread is interrupted, ``work`` is cancelled.

        Raises:
            CancelledError: `stop` was called before it ended.
        """
        call: _CoroutineCall | None = None
        try:
            with self._lock:
                if self._stopped:
                    raise asyncio.CancelledError
                call = _CoroutineCall(work, self._running())
                self._calls.add(call)
            result: T = call.result()
            return result
        except BaseException:
            if call is None:
                work.close()  # nobody will await it
            else:
                call.cancel()
            raise
        finally:
            with self._lock:
                if call is not None:
                    self._calls.discard(call)

    def stop(self) -> None:
        """Cancel what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def close(self) -> None:
        """End the thread, if it is our own; nothing may run any more."""
        with self._lock:
            if self._end is not None:
                self._end()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._given is not None:
            return self._given
        if self._loop is None or self._started_in != os.getpid():
            loop = asyncio.new_event_loop()
            try:
                threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True).start()
            except RuntimeError:  # threads are exhausted
                loop.close()
                raise
            self._started_in, self._loop = os.getpid(), loop
            self._end = weakref.finalize(self, _stop, loop)
        return self._loop


class _CoroutineCall:
    """A coroutine that runs in a loop while a thread waits for how it *really* ended.

    A cancelled future of ``run_coroutine_threadsafe`` hides a result that came at
    the same moment, and a slot with it; this one does not.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._ended = threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        try:
            loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # the loop was closed
            work.close()
            self._cancelled = True
            self._ended.set()

    def _start(self) -> None:
        if self._cancelled:
            self._work.close()
            self._ended.set()
            return
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(lambda _: self._ended.set())

    def cancel(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def result(self) -> Any:
        self._ended.wait()
        if self._task is None:
            raise asyncio.CancelledError
        return self._task.result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it was closed
        loop.call_soon_threadsafe(loop.stop)
