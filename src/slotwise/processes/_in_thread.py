"""Run a call that could block the event loop for long in a thread of its own.

Not in a pool: any number of calls may be waiting for a file's lock, and none of them may keep
the interpreter from exiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from slotwise._core.limit import require_asyncio
from slotwise._core.messages import no_thread
from slotwise._wait.threads import start_thread

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


async def in_thread(
    call: Callable[[], T],
    undo: Callable[[], object] | None = None,
    otherwise: Callable[[], T] | None = None,
) -> T:
    """Return the result of ``call``.

    Args:
        call: called in the thread.
        undo: called after it if this was cancelled in the meantime.
        otherwise: called here instead if no thread can be started.

    Raises:
        BackendError: no thread can be started.
    """
    loop = require_asyncio()
    future: asyncio.Future[T] = loop.create_future()

    def discard() -> None:
        if undo is not None:
            undo()

    def deliver(set_outcome: Callable[[], None]) -> None:
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
            loop.call_soon_threadsafe(deliver, set_outcome)
        except RuntimeError:  # the loop is closed
            discard()

    failures: list[RuntimeError] = []
    start_thread("file-lock", run, on_failure=failures.append)
    if failures and otherwise is not None:
        return otherwise()
    if failures:
        raise no_thread(str(failures[0]))
    return await future
