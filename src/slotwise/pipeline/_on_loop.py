"""Run coroutines in an event loop on behalf of threads, and return how they really ended.

For waits that a plain thread could not break off: the coroutine can be cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from slotwise._core import fork


def loop_in_a_thread(name: str) -> asyncio.AbstractEventLoop:
    """A running loop; ``loop.call_soon_threadsafe(loop.stop)`` ends it and its thread."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        loop.run_forever()
        loop.close()

    threading.Thread(target=run, name=name, daemon=True).start()
    return loop


class OnLoop:
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


class LoopCalls:
    """Coroutines that threads wait for; `stop` cancels all of them.

    Args:
        loop: where they run. None: a loop of our own, started when it is needed.
        name: of its thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None, name: str) -> None:
        self._loop = loop
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._name = name
        self._lock = fork.new_lock()  # a run may be stopped by the collector, anywhere
        self._calls: set[OnLoop] = set()
        self._stopped = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return or raise what ``work`` does; CancelledError after `stop`."""
        with self._lock:
            if self._stopped:
                work.close()
                raise asyncio.CancelledError
            if self._loop is None:
                self._loop = self._own_loop = loop_in_a_thread(self._name)
            call = OnLoop(work, self._loop)
            self._calls.add(call)
        try:
            return call.result()
        finally:
            with self._lock:
                self._calls.discard(call)

    def stop(self) -> None:
        """Cancel those that run, and start none afterwards."""
        with self._lock:
            self._stopped = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def close(self) -> None:
        """Stop the loop; nothing runs any more."""
        if self._own_loop is not None:
            self._own_loop.call_soon_threadsafe(self._own_loop.stop)
            self._own_loop = None
