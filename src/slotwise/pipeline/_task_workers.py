"""TaskWorkers: run a coroutine function over a source with tasks of one event loop.

A worker that finishes takes the lead if nobody has it, and ends otherwise. A worker is started when
nobody leads, at the next iteration of the loop, so a function that never waits is run by one worker
alone, and no task is ever made for an item. What they do is in `_workers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from slotwise.pipeline._context import in_context
from slotwise.pipeline._flow import Flow
from slotwise.pipeline._workers import NOT_YET, Release, Source, Workers

# How many loop iterations to wait for an async source before starting items that were
# already pulled.
_TURNS_OF_PATIENCE = 2


class TaskWorkers(Workers):
    """The workers of one run; for use in the thread of its event loop only."""

    _are_tasks = True

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Awaitable[Any]],
        source: Source,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(flow, fn, source)
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fetch: asyncio.Task[Any] | None = None
        self._stopped = False
        self._unbegun: set[asyncio.Task[Any]] = set()  # those that have left the lead and not begun
        self._releasing: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------ for the owner

    @property
    def finished(self) -> bool:
        over = self.flow.over or not self.opened
        return over and not self._tasks and not self._will_start_worker

    def listen(self, wake: Callable[[], None], *, results: bool = True) -> bool:
        del results  # in one thread, none can arrive between a look and this call
        self._listeners.append(wake)
        return True

    def take(self) -> Any:
        result = self.flow.results.take()
        if self._sleepers:
            self._nudge()
        return result

    def stop(self, *, cancel: bool = False) -> None:
        if asyncio._get_running_loop() is not self._loop:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(lambda: self.stop(cancel=cancel))
            return
        self.flow.finish()
        self.opened = self._stopped = True
        self._cancelling = self._cancelling or cancel
        current = asyncio.current_task()
        # Tasks that are releasing their slots are left alone: they end anyway.
        unbegun = {self._leader, self._fetch, *self._unbegun}
        for task in self._tasks - self._releasing if cancel else self._tasks & unbegun:
            if task is not current:
                task.cancel()
        self._nudge()
        self._tell()

    # ------------------------------------------------------------ starting workers

    def _start_worker(self) -> None:
        if not self._will_start_worker:
            self._will_start_worker = True
            self._loop.call_soon(self._start_worker_now)

    def _start_worker_now(self) -> None:
        self._will_start_worker = False
        self._streak = 0
        if self._leader is None and not self.flow.over and len(self._tasks) < self.flow.limit:
            self._start(self._work())
        elif not self._tasks:
            self._tell()

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._context.copy().run(self._loop.create_task, work)
        self._tasks.add(task)
        task.add_done_callback(self._left)
        return task

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the flow has it; this only marks it as retrieved
        if self._tasks:
            return
        if self.flow.assignments is not None:
            self.flow.over = True
        elif not self.flow.over:
            self._start_worker()  # the leader was cancelled from outside
        self._tell()

    # ------------------------------------------------------------------ working

    def _me(self) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        return task

    def _await_lead(self) -> bool:
        return False

    def _pass_lead(self) -> None:
        if not self.flow.over:
            self._start_worker()

    async def _pull(self) -> Any:
        assert isinstance(self._source, AsyncIterator)
        pull = partial(in_context, self._pulling, self._source.__anext__)
        if self.flow.settings.priority is None:
            return await pull()
        if self._fetch is None:
            self._fetch = self._start(self._fetching(pull))
        try:
            if self.flow.looked_ahead:
                for _ in range(_TURNS_OF_PATIENCE):
                    await asyncio.sleep(0)
                if not self._fetch.done():
                    return NOT_YET
            await asyncio.wait([self._fetch])
        except asyncio.CancelledError:
            self._fetch.cancel()
            raise
        fetched, self._fetch = self._fetch, None
        return fetched.result()

    async def _fetching(self, pull: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await pull()
        finally:
            self._nudge()

    def _call(self, item: Any) -> Awaitable[Any]:
        if self._unbegun:
            self._unbegun.discard(self._me())
        # Each item has a copy of the caller's context; most often both contexts are empty.
        if copy_context() or self._context:
            return in_context(self._context.copy(), self._fn, item)
        return self._fn(item)  # type: ignore[no-any-return]

    async def _take_slots(self, slots: int) -> Release:
        assert self._semaphore is not None
        task, block = self._me(), self._semaphore.cm(slots)
        self._unbegun.add(task)
        try:
            await block.__aenter__()
        except BaseException:
            self._unbegun.discard(task)
            raise

        async def release(raised: type[BaseException] | None) -> None:
            self._unbegun.discard(task)
            self._releasing.add(task)
            try:
                await block.__aexit__(raised, None, None)
            finally:
                self._releasing.discard(task)

        return release

    async def _forget_cancellation(self) -> None:
        task = self._me()
        while task.cancelling():
            task.uncancel()
        try:
            await asyncio.sleep(0)  # before 3.13, one that was not delivered yet is still pending
        except asyncio.CancelledError:
            pass

    def _give_up(self) -> None:
        if not self._stopped:
            failed = self.flow.settings.on_error == "raise" and self.flow.report.failed > 0
            self.stop(cancel=failed)

    def _report_progress(self, hook: Callable[[Any], object]) -> None:
        hook(self.flow.report)

    # ------------------------------------------------------------------ waiting

    async def _changed(self, timeout: float | None = None) -> None:
        sleeper = self._loop.create_future()
        self._sleepers.append(sleeper)
        timer = None if timeout is None else self._loop.call_later(timeout, self._nudge)
        try:
            await sleeper
        finally:
            if timer is not None:
                timer.cancel()

    def _nudge(self) -> None:
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
