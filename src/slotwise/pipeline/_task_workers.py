"""TaskWorkers: run a coroutine function over a source with tasks of one event loop.

One worker at a time leads: it pulls the next item, waits until that may start,
gives up the lead, takes slots for it if there is a semaphore, and runs it. A worker that
finishes takes the lead if nobody has it, and ends otherwise. A worker is started when
nobody leads, at the next iteration of the loop, so a function that never waits is run by
one worker alone, and no task is ever made for an item.

What to pull and whether it may start is decided by `_flow`; runs with ``group_key`` are
in `_grouped_task_workers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final

from slotwise._core.limit import AcquisitionContext
from slotwise.pipeline._context import in_context, is_same
from slotwise.pipeline._flow import Flow, NextStep
from slotwise.pipeline._listeners import Listeners
from slotwise.pipeline._work_item import WorkItem

# A function that never awaits yields to the loop after this many items.
_ITEMS_PER_TURN = 256
# How many loop iterations to wait for an async source before starting items that were
# already pulled.
_TURNS_OF_PATIENCE = 2
_NOT_YET: Final = object()


class TaskWorkers:
    """The workers of one run; for use in the thread of its event loop only."""

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Awaitable[Any]],
        source: Iterator[Any] | AsyncIterator[Any],
    ) -> None:
        self.flow = flow
        self._news = Listeners()
        self._fn = fn
        # The caller's, as it was when the run was opened. Each item runs in a copy of it,
        # and the source in one copy for its whole life, whichever worker pulls.
        self._context = Context()
        self._source = source
        self._pull_now: Callable[[], Any] | None = None
        self._pull_later: Callable[[], Awaitable[Any]] | None = None
        # The other one is not an end but a bug in the source.
        self._no_more: type[Exception] = (
            StopAsyncIteration if isinstance(source, AsyncIterator) else StopIteration
        )
        self._fetch: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leader: asyncio.Task[None] | None = None
        self._will_start_worker = False
        self._cancelling = False
        self._opened = False
        self._stopped = False
        self._streak = 0
        self._resting = 0  # workers that let the loop run before they continue
        self._sleepers: list[asyncio.Future[None]] = []
        self._semaphore = flow.settings.semaphore
        self._has_progress = flow.settings.on_progress is not None
        self._unbegun: set[asyncio.Task[Any]] = set()  # those that have left the lead and not begun
        self._releasing: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------ for the owner

    def open(self) -> None:
        if not self._opened:
            self._opened = True
            self._context = copy_context()
            pulling = self._context.copy()
            if isinstance(self._source, AsyncIterator):
                self._pull_later = partial(in_context, pulling, self._source.__anext__)
            else:
                self._pull_now = partial(pulling.run, self._source.__next__)
            self.flow.report._begin()
            self._begin()

    def _begin(self) -> None:
        self._start_worker_soon()

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing will be started."""
        return (
            not self._tasks and (self.flow.over or not self._opened) and not self._will_start_worker
        )

    def listen(self, wake: Callable[[], None], *, results: bool = True) -> bool:
        """Call ``wake`` at the next result or end; return False if there is one already."""
        del results  # in one thread, none can arrive between a look and this call
        self._news.listen(wake)
        return True

    def take(self) -> Any:
        result = self.flow.results.take()
        if self._sleepers:
            self._nudge()
        return result

    def stop(self, *, cancel: bool) -> None:
        """Start nothing more; with ``cancel``, also cancel what runs."""
        self.flow.finish()
        self._opened = self._stopped = True
        self._cancelling = self._cancelling or cancel
        current = asyncio.current_task() if asyncio._get_running_loop() is self._loop else None
        # Tasks that are releasing their slots are left alone: they end anyway.
        for task in (self._tasks - self._releasing) if cancel else self._waiting():
            if task is not None and task is not current:
                task.cancel()
        self._nudge()
        self._news.notify()

    def _waiting(self) -> list[asyncio.Task[Any] | None]:
        """The tasks that have not started an item yet."""
        return [self._leader, self._fetch, *self._unbegun]

    def stop_from_anywhere(self, *, cancel: bool) -> None:
        """Like `stop`, from any thread, even when the loop is gone."""
        if self.finished and self._opened:
            return
        if asyncio._get_running_loop() is self._loop:
            self.stop(cancel=cancel)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.stop(cancel=cancel))

    # ------------------------------------------------------------ starting workers

    def _start_worker_soon(self) -> None:
        if not self._will_start_worker:
            self._will_start_worker = True
            self._loop.call_soon(self._start_worker)

    def _start_worker(self) -> None:
        self._will_start_worker = False
        self._streak = 0
        if self._resting:
            pass  # somebody is about to look for work
        elif self._leader is None and not self.flow.over and len(self._tasks) < self.flow.limit:
            self._add(self._work())
        elif not self._tasks:
            self._news.notify()

    def _add(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._context.copy().run(self._loop.create_task, work)
        self._tasks.add(task)
        task.add_done_callback(self._left)
        return task

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the flow has it; this only marks it as retrieved
        if not self._tasks:
            self._all_left()
            self._news.notify()

    def _all_left(self) -> None:
        if not self.flow.over:
            self._start_worker_soon()  # the leader was cancelled from outside

    # ------------------------------------------------------------------ working

    async def _work(self) -> None:
        task = this_task()
        # Runs for every item: saves a coroutine where there is nothing to wait for.
        lead = self._next if self.flow.unconditional else self._lead
        while self._leader is None:
            self._leader = task
            try:
                work = await lead()
            finally:
                self._leader = None
                if not self._will_start_worker and not self.flow.over:
                    self._start_worker_soon()
            if work is None:
                return
            if self._semaphore is None:
                await self._run(work, task)
            else:
                await self._run_with_slots(work, task)
            self._streak += 1
            if self._streak >= _ITEMS_PER_TURN:
                self._streak = 0
                self._resting += 1
                try:
                    await asyncio.sleep(0)
                finally:
                    self._resting -= 1

    async def _lead(self) -> WorkItem | None:
        """Return the next item once it may start; None if there is none."""
        work = await self._next()
        return work if work is not None and await self._admit(work) else None

    async def _next(self) -> WorkItem | None:
        """Return the next item once it is decided which; None if there is none."""
        flow, pull = self.flow, self._pull_now
        while True:
            step = flow.next_step()
            if step is NextStep.PULL:
                try:
                    item = pull() if pull is not None else await self._pull()
                except self._no_more:
                    flow.exhausted = True
                    continue
                except asyncio.CancelledError as error:
                    if flow.stopped:
                        raise
                    flow.source_failed(error)
                    if self._fetch is not None:
                        self._fetch.cancel()
                    await self._forget_cancellation()
                    continue
                except Exception as error:
                    flow.source_failed(error)
                    continue
                if item is not _NOT_YET:
                    work = flow.take_in(item)
                    if work is not None:
                        return work
                    if flow.stopped:  # its weight or priority raised
                        self._give_up()
                elif flow.looked_ahead:
                    return flow.best()
                else:
                    await self._changed()
            elif step is NextStep.AHEAD:
                return flow.best()
            elif step is NextStep.WAIT:
                await self._changed()
            else:
                if flow.stopped:  # by the memory guard
                    self._give_up()
                return None

    async def _pull(self) -> Any:
        """Return the next item of an async source, or _NOT_YET if others can start meanwhile."""
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

    async def _admit(self, work: WorkItem) -> bool:
        """Wait until ``work`` may start, or ask for its slots; False if it never will."""
        return await self._wait_until(work, lambda: self.flow.may_start(work))

    async def _wait_until(self, work: WorkItem, verdict: Callable[[], NextStep | float]) -> bool:
        """Wait until the verdict on ``work`` is START; give it up if that never comes."""
        while True:
            step = verdict()
            if step is NextStep.START:
                return True
            if step is NextStep.OVER:
                self.flow.drop(work)
                self._item_ended()
                return False
            try:
                if step is NextStep.WAIT:
                    await self._changed()
                else:
                    await asyncio.sleep(float(step))  # type: ignore[arg-type]
            except asyncio.CancelledError as error:
                self._interrupted(work, error)
                raise

    def _interrupted(self, work: WorkItem, error: asyncio.CancelledError) -> None:
        """Handle the cancellation of a task that waits to start: ours, or one from outside."""
        if self.flow.stopped:
            self.flow.drop(work)
        else:
            self.flow.reject(work, error)
        self._item_ended()

    async def _run_with_slots(self, work: WorkItem, task: asyncio.Task[Any]) -> None:
        self._unbegun.add(task)
        try:
            block = await self._acquire(work)
            if block is None:
                return
            try:
                if await self._wait_until(work, self.flow.may_begin):
                    self._unbegun.discard(task)
                    await self._run(work, task)
            finally:
                self._unbegun.discard(task)
                self._releasing.add(task)
                await block.__aexit__(getattr(work, "raised", None), None, None)
        except Exception as error:  # the semaphore's: the flow handles those of the item
            self.flow.finish(error)
            self._item_ended()
        finally:
            self._unbegun.discard(task)
            self._releasing.discard(task)

    async def _acquire(self, work: WorkItem) -> AcquisitionContext | None:
        """Take the item's slots; return None if it gets none."""
        assert self._semaphore is not None
        self.flow.ask()
        try:
            block = self._semaphore.cm(work.weight)
            await block.__aenter__()
        except asyncio.CancelledError as error:
            self._interrupted(work, error)
            raise
        except Exception as error:
            self.flow.refused(work, error)
            self._item_ended()
            return None
        else:
            return block
        finally:
            self.flow.asked()
            self._nudge()

    async def _run(self, work: WorkItem, task: asyncio.Task[Any]) -> None:
        flow = self.flow
        flow.begin(work)
        try:
            # In a copy of the caller's context. A worker starts in one, which is used for every
            # item until one of them changes it. Most often both are empty, and quick to compare.
            context = copy_context()
            if (context or self._context) and not is_same(context, self._context):
                result = await in_context(self._context.copy(), self._fn, work.item)
            else:
                result = await self._fn(work.item)
        except asyncio.CancelledError as error:
            if self._cancelling:
                flow.cancelled(work)
                raise
            flow.fail(work, error)
        except Exception as error:
            flow.fail(work, error)
        except BaseException as error:  # SystemExit or KeyboardInterrupt: it ends the loop
            flow.fail(work, error)
            raise
        else:
            flow.succeed(work, result)
        finally:
            if self._sleepers or self._news.calls or flow.stopped or self._has_progress:
                self._item_ended()
        if task.cancelling() and not self._cancelling:
            await self._forget_cancellation()

    def _item_ended(self) -> None:
        flow = self.flow
        if self._has_progress:
            self._progress()
        if flow.stopped:
            self._give_up()
        if self._news.calls and flow.results.first_is_ready:
            self._news.notify()
        if self._sleepers:
            self._nudge()

    async def _forget_cancellation(self) -> None:
        """Clear a cancellation from outside: it failed one item, not the next one."""
        task = this_task()
        while task.cancelling():
            task.uncancel()
        try:
            await asyncio.sleep(0)  # before 3.13, one that was not delivered yet is still pending
        except asyncio.CancelledError:
            pass

    def _give_up(self) -> None:
        """End the run early; cancel what runs only if an item failed."""
        if not self._stopped:
            failed = self.flow.settings.on_error == "raise" and self.flow.report.failed > 0
            self.stop(cancel=failed)

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


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
