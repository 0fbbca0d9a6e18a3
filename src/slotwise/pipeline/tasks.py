"""TaskCrew: coroutine functions, run by tasks of one event loop.

One worker at a time leads: it pulls the next item, waits until that may start,
leaves the lead and runs it. Who finishes while nobody leads, leads; who finishes
while somebody does, goes home. A worker is hired when nobody leads, at the next
turn of the loop, so a function that never waits is run by one worker alone, and
no task is ever made for an item.

What to pull and whether it may start is `flow`'s business; runs with ``group_key`` are
in `task_lanes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

from slotwise.pipeline.flow import Flow, Step
from slotwise.pipeline.news import News
from slotwise.pipeline.start import Start

# A function that never waits lets the rest of the loop run every so many items.
_ITEMS_PER_TURN = 256
# An async source that answers within so many turns of the loop is looked ahead
# over; one that takes longer does not keep the items at hand waiting.
_TURNS_OF_PATIENCE = 2
_NOT_YET: Final = object()


class TaskCrew:
    """The workers of one run; for use in the thread of its event loop only."""

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Awaitable[Any]],
        source: Iterator[Any] | AsyncIterator[Any],
    ) -> None:
        self.flow = flow
        self._news = News()
        self._fn = fn
        self._pull_now = None if isinstance(source, AsyncIterator) else source.__next__
        self._pull_later = source.__anext__ if isinstance(source, AsyncIterator) else None
        self._fetch: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leader: asyncio.Task[None] | None = None
        self._hiring = False
        self._cancelling = False
        self._opened = False
        self._streak = 0
        self._resting = 0  # workers that let the loop run and then go on
        self._sleepers: list[asyncio.Future[None]] = []
        self._semaphore = flow.settings.semaphore

    # ------------------------------------------------------------ for the owner

    def open(self) -> None:
        if not self._opened:
            self._opened = True
            self.flow.report._begin()
            self._begin()

    def _begin(self) -> None:
        self._hire_soon()

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing will."""
        return not self._tasks and (self.flow.over or not self._opened) and not self._hiring

    def listen(self, wake: Callable[[], None], *, results: bool = True) -> bool:
        """Call ``wake`` when there is news; False if there is some already."""
        del results  # in one thread there is none between a look and this call
        self._news.listen(wake)
        return True

    def take(self) -> Any:
        result = self.flow.results.take()
        if self._sleepers:
            self._nudge()
        return result

    def stop(self, *, cancel: bool) -> None:
        """Start nothing any more; with ``cancel``, cancel what runs, too."""
        self.flow.finish()
        self._opened = True
        current = asyncio.current_task() if asyncio._get_running_loop() is self._loop else None
        if cancel:
            self._cancelling = True
            for task in list(self._tasks):
                if task is not current:
                    task.cancel()
        else:
            for waiting in self._waiting():
                if waiting is not None and waiting is not current:
                    waiting.cancel()
        self._nudge()
        self._news.tell()

    def _waiting(self) -> list[asyncio.Task[Any] | None]:
        """Who has not started an item yet."""
        return [self._leader, self._fetch]

    def stop_from_anywhere(self, *, cancel: bool) -> None:
        """Like `stop`, from any thread, also when the loop is gone."""
        if self.finished and self._opened:
            return
        if asyncio._get_running_loop() is self._loop:
            self.stop(cancel=cancel)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.stop(cancel=cancel))

    # ------------------------------------------------------------------- hiring

    def _hire_soon(self) -> None:
        if not self._hiring:
            self._hiring = True
            self._loop.call_soon(self._hire)

    def _hire(self) -> None:
        self._hiring = False
        self._streak = 0
        if self._resting:
            pass  # somebody is about to look for work
        elif self._leader is None and not self.flow.over and len(self._tasks) < self.flow.limit:
            self._add(self._work())
        elif not self._tasks:
            self._news.tell()

    def _add(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._left)
        return task

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the flow has it; this only says that it was looked at
        if not self._tasks:
            self._all_left()
            self._news.tell()

    def _all_left(self) -> None:
        if not self.flow.over:
            self._hire_soon()  # who led was cancelled by a stranger; somebody else goes on

    # ------------------------------------------------------------------ working

    async def _work(self) -> None:
        task = asyncio.current_task()
        while self._leader is None:
            self._leader = task
            try:
                start = await self._lead()
            finally:
                self._leader = None
            if start is None:
                return
            if not self._hiring:
                self._hire_soon()
            await self._run(start)
            self._streak += 1
            if self._streak >= _ITEMS_PER_TURN:
                self._streak = 0
                self._resting += 1
                try:
                    await asyncio.sleep(0)
                finally:
                    self._resting -= 1

    async def _lead(self) -> Start | None:
        """The next item, once it may start; None if there is none."""
        start = await self._next()
        if start is None or self.flow.unconditional or await self._admit(start):
            return start
        self.flow.drop(start)
        return None

    async def _next(self) -> Start | None:
        """The next item, as soon as it is decided which; None if there is none."""
        flow, pull = self.flow, self._pull_now
        while True:
            step = flow.next_step()
            if step is Step.PULL:
                try:
                    item = pull() if pull is not None else await self._pull()
                except (StopIteration, StopAsyncIteration):
                    flow.exhausted = True
                    continue
                except Exception as error:
                    flow.finish(error)
                    continue
                if item is not _NOT_YET:
                    start = flow.take_in(item)
                    if start is not None:
                        return start
                    if flow.error is not None:  # its weight or priority could not be told
                        self._give_up()
                elif flow.looked_ahead:
                    return flow.best()
                else:
                    await self._changed()
            elif step is Step.AHEAD:
                return flow.best()
            elif step is Step.WAIT:
                await self._changed()
            else:
                return None

    async def _pull(self) -> Any:
        """The next item of an async source, or _NOT_YET if others are at hand meanwhile."""
        assert self._pull_later is not None
        if self.flow.settings.priority is None:
            return await self._pull_later()
        if self._fetch is None:
            self._fetch = self._add(self._fetching(self._pull_later))
        if self.flow.looked_ahead:
            for _ in range(_TURNS_OF_PATIENCE):
                if not self._fetch.done():
                    await asyncio.sleep(0)
            if not self._fetch.done():
                return _NOT_YET
        else:
            await asyncio.wait([self._fetch])
        fetched, self._fetch = self._fetch, None
        return fetched.result()

    async def _fetching(self, pull: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await pull()
        finally:
            self._nudge()

    async def _admit(self, start: Start) -> bool:
        """Wait until ``start`` may start; False if it never will."""
        flow = self.flow
        while True:
            verdict = flow.may_start(start)
            if verdict is Step.START:
                break
            if verdict is Step.OVER:
                return False
            if verdict is Step.WAIT:
                await self._changed()
            else:
                await asyncio.sleep(float(verdict))  # type: ignore[arg-type]
        if self._semaphore is not None:
            try:
                start.acquisition = await self._semaphore.acquire(start.weight)
            except Exception as error:  # closed, timed out, unreachable: nothing can run
                flow.finish(error)
                return False
            if flow.over:
                self._release(start)
                return False
        return True

    async def _run(self, start: Start) -> None:
        flow = self.flow
        flow.begin(start)
        try:
            result = await self._fn(start.item)
        except asyncio.CancelledError as error:
            if self._cancelling:
                flow.cancelled(start)
                raise
            flow.fail(start, error)
        except Exception as error:
            flow.fail(start, error)
        except BaseException as error:  # an exit: the loop ends with it
            flow.fail(start, error)
            raise
        else:
            flow.succeed(start, result)
            if self._news.calls:
                self._news.tell()
        finally:
            if start.acquisition is not None:
                self._release(start)
            if flow.error is not None:
                self._give_up()
            if self._sleepers:
                self._nudge()
            if flow.settings.on_progress is not None:
                self._progress()

    def _release(self, start: Start) -> None:
        # Not `await release()`: a cancellation in the middle of it would lose the slot.
        assert self._semaphore is not None
        assert start.acquisition is not None
        self._semaphore.release_sync(start.acquisition)
        start.acquisition = None

    def _give_up(self) -> None:
        """An item failed and that ends the run; memory and sources let others finish."""
        if self.flow.settings.on_error == "raise" and self.flow.report.failed:
            self.stop(cancel=True)

    def _progress(self) -> None:
        if self.flow.progress_is_due():
            assert self.flow.settings.on_progress is not None
            try:
                self.flow.settings.on_progress(self.flow.report)
            except Exception as error:
                self.flow.finish(error)

    # ------------------------------------------------------------------ waiting

    async def _changed(self) -> None:
        sleeper = self._loop.create_future()
        self._sleepers.append(sleeper)
        await sleeper

    def _nudge(self) -> None:
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
