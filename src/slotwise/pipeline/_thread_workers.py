"""ThreadWorkers: run a plain function over a source with threads that pull their own items.

The pattern is that of `_task_workers`: one worker at a time leads, pulls, waits until its item may
start, leaves the lead, takes slots for it if there is a semaphore, and runs it. A thread is started
when nobody leads and nobody is idle.

Threads can't be cancelled: a stopped run starts nothing more and waits for running items.

What to pull and whether it may start is decided by `_flow`; runs with ``group_key`` are
in `_grouped_thread_workers`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeAlias

from slotwise._core import fork
from slotwise._core.limit import AcquisitionContext, Limit
from slotwise._core.results import AcquisitionResult
from slotwise._wait.loop_thread import LoopThread
from slotwise.pipeline._context import in_context
from slotwise.pipeline._flow import Flow, NextStep
from slotwise.pipeline._listeners import Listeners
from slotwise.pipeline._results import NOTHING
from slotwise.pipeline._work_item import WorkItem

# Releases an item's slots; it gets the type of the exception, if the work failed.
_GiveBack: TypeAlias = "Callable[[type[BaseException] | None], object]"

_numbers = itertools.count(1)


class ThreadWorkers:
    """The workers of one run; every method may be called from any thread.

    Args:
        flow: makes the decisions; only used with the lock held.
        fn: runs without the lock.
        source: pulled without the lock, by one thread at a time.
        loop: the event loop that an async source, and waiting for a contended
            semaphore, run in. None: one of our own is started if needed.
    """

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Any],
        source: Iterator[Any] | AsyncIterator[Any],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.flow = flow
        self._fn = fn
        self._source = source
        # The other one is not an end but a bug in the source.
        self._no_more: type[Exception] = (
            StopAsyncIteration if isinstance(source, AsyncIterator) else StopIteration
        )
        # The caller's, as it was when the run was opened. Each item runs in a copy of it,
        # and the source in one copy for its whole life, whichever thread pulls.
        self._context = self._pulling = Context()
        # Reentrant: garbage collection may end a forgotten run (`__del__`) in a thread that holds
        # it.
        self._lock = fork.new_lock()
        self._changed = threading.Condition(self._lock)  # workers waiting to start their items
        self._idle = threading.Condition(self._lock)  # workers waiting for the lead
        self._until_news = threading.Condition(self._lock)  # a consumer without an event loop
        self._news = Listeners()
        self._threads = 0
        self._idle_threads = 0
        self._leading = False
        self.opened = False
        self._semaphore = flow.settings.semaphore
        self._name = f"slotwise-pipeline-{next(_numbers)}"
        self._calls = LoopThread(f"{self._name}-waits", loop)

    # ------------------------------------------------------------ for the owner

    def open(self) -> None:
        with self._lock:
            if self.opened:
                return
            self.opened = True
            self._context = copy_context()
            self._pulling = self._context.copy()
            self.flow.report._begin()
            self._begin()

    def _begin(self) -> None:
        self._start_worker(self._work)

    @property
    def finished(self) -> bool:
        return not self._threads and (self.flow.over or not self.opened)

    def listen(self, wake: Callable[[], None], *, results: bool = True) -> bool:
        """Call ``wake``, in any thread, at the next result or end.

        Return False if there is one already; without ``results``, if the end is.
        """
        with self._lock:
            if self.finished or (results and self.flow.results.first_is_ready):
                return False
            self._news.listen(wake)
            return True

    def take(self) -> Any:
        with self._lock:
            result = self.flow.results.take()
            if result is not NOTHING:
                self._changed.notify_all()
            return result

    def wait(self) -> None:
        """Block until there may be a result or the end."""
        with self._lock:
            if not self.finished and not self.flow.results.first_is_ready:
                self._until_news.wait()

    def wait_for_end(self) -> None:
        with self._lock:
            while not self.finished:
                self._until_news.wait()

    def stop(self, *, cancel: bool = False) -> None:
        """Start nothing more; ``cancel`` is for tasks, threads always finish."""
        del cancel
        with self._lock:
            self.flow.finish()
            self.opened = True
            self._changed.notify_all()
            self._idle.notify_all()
        self._calls.stop()

    stop_from_anywhere = stop

    # ------------------------------------------------------------ starting workers

    def _start_worker(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(
            target=self._context.copy().run,
            args=(self._member, work, *args),
            name=f"{self._name}-{self._threads + 1}",
            # A run that nobody waits for must not keep the interpreter from exiting.
            daemon=True,
        )
        self._threads += 1
        try:
            thread.start()
        except RuntimeError as error:  # no more threads available
            self._threads -= 1
            if not self._threads or args:
                self.flow.finish(error)

    def _member(self, work: Callable[..., None], *args: Any) -> None:
        with self._lock:
            try:
                work(*args)
            except BaseException as error:
                self.flow.finish(error)
            self._threads -= 1
            if self.flow.stopped:
                self._calls.stop()
            if not self._threads:
                self.flow.over = True
                self._calls.close()
            self._changed.notify_all()
            self._notify()

    def _lead_passes_on(self) -> None:
        """Let another thread lead: one that waits for it, or else a new one."""
        if self.flow.over:
            self._idle.notify_all()
        elif self._idle_threads:
            self._idle.notify()
        elif self._threads < self.flow.limit:
            self._start_worker(self._work)

    # ---------------------------------------- working; all with the lock held

    def _work(self) -> None:
        while True:
            while self._leading and not self.flow.over:
                self._idle_threads += 1
                self._idle.wait()
                self._idle_threads -= 1
            if self.flow.over:
                return
            self._leading = True
            try:
                work = self._lead()
                if work is not None and not self._admit(work):
                    work = None
            finally:
                self._leading = False
                self._lead_passes_on()
            if work is None:
                return
            self._run_with_slots(work)

    def _lead(self) -> WorkItem | None:
        """Return the next item; None if there is none."""
        flow = self.flow
        while True:
            step = flow.next_step()
            if step is NextStep.AHEAD:
                return flow.best()
            if step is NextStep.WAIT:
                self._changed.wait()
            elif step is NextStep.OVER:
                return None
            else:
                try:
                    item = self._unlocked(self._pull)
                except self._no_more:
                    flow.exhausted = True
                except (Exception, asyncio.CancelledError) as error:
                    flow.source_failed(error)
                else:
                    work = None if flow.over else flow.take_in(item)
                    if work is not None:
                        return work

    def _pull(self) -> Any:
        if not isinstance(self._source, AsyncIterator):
            return self._pulling.run(next, self._source)
        pull = partial(in_context, self._pulling, self._source.__anext__)

        async def pulling() -> Any:
            try:
                return [await pull()]
            except StopAsyncIteration:
                return []

        found = self._run_on_loop(pulling())
        if not found:
            raise StopAsyncIteration
        return found[0]

    def _admit(self, work: WorkItem) -> bool:
        """Wait until ``work`` may start, or ask for its slots; False if it never will."""
        return self._wait_until(work, lambda: self.flow.may_start(work))

    def _wait_until(self, work: WorkItem, verdict: Callable[[], NextStep | float]) -> bool:
        """Wait until the verdict on ``work`` is START; it is given up if that never comes."""
        while True:
            step = verdict()
            if step is NextStep.START:
                return True
            if step is NextStep.OVER:
                self.flow.drop(work)
                return False
            self._changed.wait(step if isinstance(step, float) else None)

    def _run_with_slots(self, work: WorkItem) -> None:
        if self._semaphore is None:
            self._run(work)
            return
        give_back = self._acquire(work)
        if give_back is None:
            return
        try:
            if self._wait_until(work, self.flow.may_begin):
                self._run(work)
        finally:
            self._unlocked(give_back, getattr(work, "raised", None))

    def _acquire(self, work: WorkItem) -> _GiveBack | None:
        """Take the item's slots; return how to release them, or None if it gets none."""
        flow = self.flow
        flow.ask()
        try:
            give_back: _GiveBack = self._unlocked(self._take_slots, work.weight)
        except asyncio.CancelledError as error:
            if flow.stopped:
                flow.drop(work)
            else:  # the loop was closed, or somebody cancelled everything in it
                flow.reject(work, error)
        except Exception as error:
            flow.refused(work, error)
        else:
            return give_back
        finally:
            flow.asked()
            self._item_ended()
        return None

    def _run(self, work: WorkItem) -> None:
        flow = self.flow
        flow.begin(work)
        failure: BaseException | None = None
        result = None
        self._lock.release()
        try:
            result = self._context.copy().run(self._fn, work.item)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(
                    f"{self._fn!r} returned a coroutine, so it should run in the event loop:"
                    f" pass a coroutine function (async def)"
                )
        except BaseException as error:
            failure = error
        finally:
            self._lock.acquire()
        if failure is None:
            flow.succeed(work, result)
        else:
            flow.fail(work, failure)
            failure.__traceback__ = failure.__traceback__ and failure.__traceback__.tb_next
        self._item_ended()
        if flow.progress_is_due() and flow.settings.on_progress is not None:
            try:
                self._unlocked(flow.settings.on_progress, flow.report)
            except Exception as error:
                flow.finish(error)
                self._item_ended()

    def _item_ended(self) -> None:
        """Wake workers that may start now, and the consumer."""
        self._changed.notify_all()
        if self.flow.over:
            self._idle.notify_all()
        if self.flow.stopped:
            self._calls.stop()
        if self.flow.results.first_is_ready:
            self._notify()

    # ------------------------------------------------------- outside of the lock

    def _unlocked(self, call: Callable[..., Any], *args: Any) -> Any:
        self._lock.release()
        try:
            return call(*args)
        finally:
            self._lock.acquire()

    def _take_slots(self, slots: int) -> _GiveBack:
        semaphore = self._semaphore
        assert semaphore is not None
        if not semaphore._does_io:
            acquired = semaphore.try_acquire_sync(slots)
            if acquired is not None:
                return partial(_release, semaphore, acquired)
        # Unlike a blocking wait, a wait in the loop can be cancelled without losing the place in
        # the queue.
        block = semaphore.cm(slots)
        self._run_on_loop(block.__aenter__())
        return partial(_leave, block)

    def _run_on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self.flow.stopped:
            work.close()
            raise asyncio.CancelledError
        return self._calls.run(work)

    def _notify(self) -> None:
        self._until_news.notify_all()
        self._news.notify()


def _release(limit: Limit, acquired: AcquisitionResult, raised: type[BaseException] | None) -> None:
    acquired._leave_with(raised)
    limit.release_sync(acquired)


def _leave(block: AcquisitionContext, raised: type[BaseException] | None) -> None:
    block.__exit__(raised, None, None)
