"""TrioRun: what a waiter in memory needs of an asyncio event loop, for a trio run.

It has futures, which tasks of trio wait for, and calls functions in the run's thread. It is used
only where there is no asyncio event loop, so that it costs nothing elsewhere; trio is never
imported, since a program that runs under it has done so.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from typing import Any, cast

from slotwise._core.messages import needs_asyncio

_run_variable: Any = None  # trio's RunVar with the TrioRun of each run


def running_trio_task() -> object | None:
    """Return the task of trio that runs in this thread, if any."""
    trio: Any = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        task: object = trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return task


def running_trio() -> asyncio.AbstractEventLoop:
    """Return the run of trio in this thread, where there is no event loop of asyncio.

    To callers that use no more of it than `TrioRun` has, it is such a loop.

    Raises:
        RuntimeError: there is neither.
    """
    global _run_variable
    trio: Any = sys.modules.get("trio")
    if trio is None:
        raise needs_asyncio()
    if _run_variable is None:
        _run_variable = trio.lowlevel.RunVar("the run, for slotwise", default=None)
    try:
        run: TrioRun | None = _run_variable.get()
        if run is None:
            run = TrioRun(trio, trio.lowlevel.current_trio_token())
            _run_variable.set(run)
    except RuntimeError:
        raise needs_asyncio() from None
    return cast("asyncio.AbstractEventLoop", run)


class TrioRun:
    """A run of trio, as an event loop."""

    __slots__ = ("__weakref__", "_token", "trio")

    def __init__(self, trio: Any, token: Any) -> None:
        self.trio = trio
        self._token = token

    def create_future(self) -> TrioFuture:
        return TrioFuture(self)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        """Call it in the run's thread, in the order of these calls.

        Raises:
            RuntimeError: the run is over.
        """
        self._token.run_sync_soon(callback, *args)

    def is_closed(self) -> bool:
        try:
            self._token.run_sync_soon(_nothing, idempotent=True)
        except RuntimeError:
            return True
        return False

    async def pass_once(self) -> None:
        """Let the tasks run that are ready; this can't be cancelled."""
        await self.trio.lowlevel.cancel_shielded_checkpoint()


def _nothing() -> None: ...


class TrioFuture:
    """What one task of a run waits for. Whoever sets it does so in the run's thread."""

    __slots__ = ("_done", "_error", "_result", "_run", "_task")

    def __init__(self, run: TrioRun) -> None:
        self._run = run
        self._task: Any = None
        self._done = False
        self._result: object = None
        self._error: BaseException | None = None

    def get_loop(self) -> TrioRun:
        return self._run

    def done(self) -> bool:
        """Whether it is set, or its task was cancelled."""
        return self._done

    def set_result(self, result: object) -> None:
        self._result = result
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._done = True
        if self._task is not None:
            self._run.trio.lowlevel.reschedule(self._task)

    def __await__(self) -> Generator[Any, Any, object]:
        if not self._done:
            lowlevel = self._run.trio.lowlevel
            self._task = lowlevel.current_task()
            yield from lowlevel.wait_task_rescheduled(self._abort).__await__()
        if self._error is not None:
            raise self._error
        return self._result

    def _abort(self, _raise_cancelled: object) -> Any:
        self._done = True
        return self._run.trio.lowlevel.Abort.SUCCEEDED
