"""ThreadWorkers: run a plain function over a source with threads that pull their own items.

A thread is started when nobody leads and nobody is idle. Threads can't be cancelled: a stopped run
starts nothing more and waits for running items. What they do is in `_workers`: a thread runs its
coroutines, which block with the lock released instead of being suspended.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from slotwise._bounded.loop_thread import LoopThread
from slotwise._core import fork
from slotwise.pipeline._context import in_context
from slotwise.pipeline._flow import Flow
from slotwise.pipeline._results import NOTHING
from slotwise.pipeline._workers import Release, Source, Workers

_numbers = itertools.count(1)


class ThreadWorkers(Workers):
    """The workers of one run; every method may be called from any thread.

    Args:
        flow: makes the decisions; only used with the lock held.
        fn: runs without the lock.
        source: pulled without the lock, by one thread at a time.
        loop: the event loop that an async source, and waiting for a contended
            semaphore, run in. None: one of our own is started if needed.
    """

    _are_tasks = False

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Any],
        source: Source,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(flow, fn, source)
        self._pull_now = partial(self._unlocked, self._pull_blocking)
        self._tells_of_each = True
        # Reentrant: garbage collection may end a forgotten run (`__del__`) in a thread that holds
        # it.
        self._lock = fork.new_lock()
        self._change = threading.Condition(self._lock)  # workers waiting to start their items
        self._idle = threading.Condition(self._lock)  # workers waiting for the lead
        self._until_news = threading.Condition(self._lock)  # a consumer without an event loop
        self._threads = 0
        self._idle_threads = 0
        self._name = f"slotwise-pipeline-{next(_numbers)}"
        self._calls = LoopThread(f"{self._name}-waits", loop)

    # ------------------------------------------------------------ for the owner

    def open(self) -> None:
        with self._lock:
            super().open()

    @property
    def finished(self) -> bool:
        return not self._threads and (self.flow.over or not self.opened)

    def listen(self, wake: Callable[[], None], *, results: bool = True) -> bool:
        with self._lock:
            if self.finished or (results and self.flow.results.first_is_ready):
                return False
            self._listeners.append(wake)
            return True

    def take(self) -> Any:
        with self._lock:
            result = self.flow.results.take()
            if result is not NOTHING:
                self._nudge()
            return result

    def wait(self, *, results: bool = True) -> None:
        """Block until there may be the end, or a result."""
        with self._lock:
            if not self.finished and not (results and self.flow.results.first_is_ready):
                self._until_news.wait()

    def stop(self, *, cancel: bool = False) -> None:
        del cancel  # threads always finish
        with self._lock:
            self.flow.finish()
            self.opened = True
            self._nudge()
        self._calls.stop()

    # ------------------------------------------------------------ starting workers

    def _start_worker(self) -> None:
        self._start(self._work())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        thread = threading.Thread(
            target=self._context.copy().run,
            args=(self._member, work),
            name=f"{self._name}-{self._threads + 1}",
            # A run that nobody waits for must not keep the interpreter from exiting.
            daemon=True,
        )
        self._threads += 1
        try:
            thread.start()
        except RuntimeError as error:  # no more threads available
            work.close()
            self._threads -= 1
            if not self._threads or self.flow.assignments is not None:
                self.flow.finish(error)

    def _member(self, work: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            try:
                work.send(None)  # to its end: nothing in it is ever suspended
            except StopIteration:
                pass
            except BaseException as error:
                self.flow.finish(error)
            self._threads -= 1
            if self.flow.stopped:
                self._calls.stop()
            if not self._threads:
                self.flow.over = True
                self._calls.close()
            self._nudge()
            self._tell()

    # ---------------------------------------- working; all with the lock held

    def _me(self) -> threading.Thread:
        return threading.current_thread()

    def _await_lead(self) -> bool:
        while self._leader is not None and not self.flow.over:
            self._idle_threads += 1
            self._idle.wait()
            self._idle_threads -= 1
        return not self.flow.over

    def _pass_lead(self) -> None:
        if self.flow.over:
            self._idle.notify_all()
        elif self._idle_threads:
            self._idle.notify()
        elif self._threads < self.flow.limit:
            self._start_worker()

    async def _changed(self, timeout: float | None = None) -> None:
        self._change.wait(timeout)

    def _nudge(self) -> None:
        self._change.notify_all()
        if self.flow.over:
            self._idle.notify_all()

    def _tell(self) -> None:
        self._until_news.notify_all()
        super()._tell()

    async def _forget_cancellation(self) -> None:
        """Threads are not cancelled."""

    def _give_up(self) -> None:
        self._calls.stop()

    # ------------------------------------------------------- outside of the lock

    def _unlocked(self, call: Callable[..., Any], *args: Any) -> Any:
        self._lock.release()
        try:
            return call(*args)
        finally:
            self._lock.acquire()

    def _pull_blocking(self) -> Any:
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

    async def _call(self, item: Any) -> Any:
        result = self._unlocked(self._context.copy().run, self._fn, item)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(
                f"{self._fn!r} returned a coroutine, so it should run in the event loop:"
                f" pass a coroutine function (async def)"
            )
        return result

    def _report_progress(self, hook: Callable[[Any], object]) -> None:
        self._unlocked(hook, self.flow.report)

    async def _take_slots(self, slots: int) -> Release:
        semaphore = self._semaphore
        assert semaphore is not None
        acquired = None
        if not semaphore._does_io:
            acquired = self._unlocked(semaphore.try_acquire_sync, slots)
        if acquired is None:
            # Unlike a blocking wait, a wait in the loop can be cancelled without losing the place
            # in the queue.
            acquired = self._unlocked(self._run_on_loop, semaphore.acquire(slots))

        async def release(raised: type[BaseException] | None) -> None:
            acquired._leave_with(raised)
            self._unlocked(semaphore._release_on_exit_sync, acquired)

        return release

    def _run_on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self.flow.stopped:
            work.close()
            raise asyncio.CancelledError
        return self._calls.run(work)
