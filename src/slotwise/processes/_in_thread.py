"""Doing in a thread what would block an event loop: somebody has had a file's lock for long.

A thread of its own for each call, since any of them may take long and none may
keep the interpreter from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """The outcome of ``call``; if this is cancelled before, ``undo`` is called after it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def nobody_waits() -> None:
        if undo is not None:
            undo()

    def settle(outcome: Callable[[], None]) -> None:
        if future.done():
            nobody_waits()
        else:
            outcome()

    def run() -> None:
        outcome: Callable[[], None]
        try:
            result = call()
        except BaseException as error:
            failure = error
            outcome = lambda: future.set_exception(failure)  # noqa: E731
        else:
            outcome = lambda: future.set_result(result)  # noqa: E731
        try:
            loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:  # the loop is closed
            nobody_waits()

    threading.Thread(target=run, name="slotwise-patience", daemon=True).start()
    return await future
