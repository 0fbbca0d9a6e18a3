"""Run a call in a thread of its own, when it could block the event loop for long.

Not in a pool: any number of calls may be waiting for a file's lock, and none of them may keep
the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """Return the result of ``call``; if this is cancelled first, ``undo`` is called after it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def discard() -> None:
        if undo is not None:
            undo()

    def settle(set_outcome: Callable[[], None]) -> None:
        if future.done():
            discard()
        else:
            set_outcome()

    def run() -> None:
        set_outcome: Callable[[], None]
        try:
            result = call()
        except BaseException as error:
            failure = error
            set_outcome = lambda: future.set_exception(failure)  # noqa: E731
        else:
            set_outcome = lambda: future.set_result(result)  # noqa: E731
        try:
            loop.call_soon_threadsafe(settle, set_outcome)
        except RuntimeError:  # the loop is closed
            discard()

    start_thread(run)
    return await future


def start_thread(call: Callable[[], object]) -> None:
    """Run ``call``, which raises nothing, without waiting for it."""
    threading.Thread(target=call, name="slotwise-file-lock", daemon=True).start()
