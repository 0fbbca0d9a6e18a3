"""bounded_map and run_bounded: run a function over a source, a bounded number at a time.

This is what the caller sees: results, an orderly end, the report. `_task_workers` and
`_thread_workers` run the function, and `_flow` decides what may run when. The twins for callers
without an event loop come last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar, Union, Unpack, cast, overload

from slotwise._core.twins import refuse_to_block_a_loop
from slotwise.pipeline._report import Report
from slotwise.pipeline._results import NOTHING
from slotwise.pipeline._run import Run, carry
from slotwise.pipeline._settings import MapSettings, Settings, check_settings
from slotwise.pipeline._task_workers import TaskWorkers
from slotwise.pipeline._thread_workers import ThreadWorkers
from slotwise.pipeline._workers import Workers

T = TypeVar("T")
R = TypeVar("R")

Source = Union[Iterable[T], AsyncIterable[T]]  # noqa: UP007  # a generic alias for 3.11


class BoundedMap(Run[R]):
    """The results of a run as they become available; made by `bounded_map`.

    The run starts when the first result is requested, or with ``async with``.
    It ends with the source, with an error, with `aclose`, or when the loop over it
    is left; ``async with`` waits until none of it runs any more.
    """

    _workers: Workers | None = None

    def __aiter__(self) -> _AsyncIteration[R]:
        return _AsyncIteration(self)

    async def __anext__(self) -> R:
        if self._left is not None:
            self._refuse_if_left()
        workers = self._workers or self._open()
        while True:
            result = workers.take()
            if result is not NOTHING:
                return cast("R", result)
            if workers.finished:
                self._refuse_if_left()  # somebody else has closed it meanwhile
                self._conclude()
                raise StopAsyncIteration
            await self._news(workers)

    async def __aenter__(self) -> BoundedMap[R]:
        if self._workers is None:
            self._open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Start nothing more, and wait until nothing runs.

        Running items are cancelled, or finish with ``on_cancel="finish"``; plain functions in
        threads always finish. Calling it again is harmless.
        """
        self._leave_by("it was closed")
        if self._workers is None:
            self._flow.finish()
        else:
            await self._wind_down(self._workers)
        self._flow.forget_results()
        self._conclude(silently=True)

    def __del__(self) -> None:
        self._leave()

    # ---------------------------------------------------------------- inside

    def _open(self) -> Workers:
        kind = TaskWorkers if self._in_loop else ThreadWorkers
        workers = kind(self._flow, self._fn, self._source, asyncio.get_running_loop())
        self._workers = workers
        workers.open()
        return workers

    async def _news(self, workers: Workers) -> None:
        """Wait for a result or the end of the run. Cancelling this ends the run."""
        try:
            await _until_news(workers)
        except asyncio.CancelledError as cancellation:
            self._leave_by("its consumer was cancelled")
            await self._wind_down(workers)
            self._flow.forget_results()
            carry(cancellation, self.report)
            with suppress(Exception):  # the cancellation takes precedence
                self._conclude(silently=True)
            raise

    async def _wind_down(self, workers: Workers) -> None:
        workers.stop(cancel=self._settings.on_cancel == "cancel")
        cancellation = None
        while not workers.finished:
            try:
                # Ready results don't matter: nobody will take them.
                await _until_news(workers, results=False)
            except asyncio.CancelledError as again:
                # Cancelled a second time: cancel instead of finishing.
                cancellation = again
                workers.stop(cancel=True)
        if cancellation is not None:
            raise cancellation

    def _leave(self) -> None:
        """Stop because the loop was left; nobody waits for the end."""
        workers = self._workers
        if workers is not None:
            self._leave_by("a loop over it was left early")
        if workers is not None and not workers.finished:
            workers.stop(cancel=self._settings.on_cancel == "cancel")


class _AsyncIteration(AsyncIterator[R]):
    """One ``async for``; garbage-collected when the loop is left early."""

    __slots__ = ("_map",)

    def __init__(self, bounded: BoundedMap[R]) -> None:
        self._map = bounded

    def __anext__(self) -> Coroutine[Any, Any, R]:
        return self._map.__anext__()

    async def aclose(self) -> None:
        """Close the run, as `BoundedMap.aclose` does."""
        await self._map.aclose()

    def __del__(self) -> None:
        self._map._leave()


@overload
def bounded_map(
    fn: Callable[[T], Coroutine[Any, Any, R]],
    source: Source[T],
    limit: int | None = None,
    **settings: Unpack[MapSettings[T]],
) -> BoundedMap[R]: ...
@overload
def bounded_map(
    fn: Callable[[T], R],
    source: Source[T],
    limit: int | None = None,
    **settings: Unpack[MapSettings[T]],
) -> BoundedMap[R]: ...
def bounded_map(
    fn: Callable[[T], Any],
    source: Source[T],
    limit: int | None = None,
    **settings: Unpack[MapSettings[T]],
) -> BoundedMap[Any]:
    """Call ``fn`` with every item of ``source``, at most ``limit`` at once.

    Items are pulled only as slots become free, and none while too many results are not taken, so
    memory use depends on ``limit`` alone.

    Args:
        fn: a coroutine function; or a plain one, which then runs in threads.
        source: an iterable or async iterable, possibly endless. With a plain
            ``fn`` an iterable is pulled by the worker threads, one at a time.
        limit: how many run at once; by default the semaphore's value, or the smallest
            fixed value of the tiers on a path.
        **settings: the fields of `MapSettings`, by keyword.
    """
    return BoundedMap(fn, source, check_settings(limit, settings))


async def run_bounded(
    fn: Callable[[T], Any],
    source: Source[T],
    limit: int | None = None,
    **settings: Unpack[MapSettings[T]],
) -> Report:
    """Like `bounded_map`, but discard the results and return the report.

    Takes the same arguments. An exception carries the report as ``.report``, and
    so does a cancellation.
    """
    run: BoundedMap[Any] = BoundedMap(fn, source, check_settings(limit, settings), consumed=False)
    async for _ in run:
        pass  # there are no results: this waits for the end
    return run.report


async def _until_news(workers: Workers, *, results: bool = True) -> None:
    loop = asyncio.get_running_loop()
    told = loop.create_future()

    def wake() -> None:
        if not told.done():
            told.set_result(None)

    call = wake if isinstance(workers, TaskWorkers) else lambda: _call(loop, wake)
    if workers.listen(call, results=results):
        await told


def _call(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(wake)


class BoundedMapSync(Run[R]):
    """The results of a run as they become available; made by `bounded_map_sync`.

    An iterator and a context manager; `close` waits for the worker threads.
    """

    def __init__(
        self, fn: Callable[[Any], Any], source: Any, settings: Settings, *, consumed: bool = True
    ) -> None:
        super().__init__(fn, source, settings, consumed=consumed)
        if self._in_loop:
            raise TypeError(
                f"{fn!r} is a coroutine function; it needs bounded_map and an event loop"
            )
        if not isinstance(self._source, Iterator):
            raise TypeError(f"an async source needs bounded_map and an event loop: {source!r}")
        self._workers = ThreadWorkers(self._flow, fn, self._source)

    def __iter__(self) -> _Iteration[R]:
        return _Iteration(self)

    def __next__(self) -> R:
        refuse_to_block_a_loop("bounded_map_sync")
        self._refuse_if_left()
        workers = self._workers
        try:
            workers.open()
            while True:
                result = workers.take()
                if result is not NOTHING:
                    return cast("R", result)
                if workers.finished:
                    self._refuse_if_left()  # another thread has closed it meanwhile
                    break
                workers.wait()
        except BaseException as interruption:  # Ctrl-C: end in order, then re-raise it
            self._leave_by("its consumer was interrupted")
            carry(interruption, self.report)
            self.close()
            raise
        self._conclude()
        raise StopIteration

    def __enter__(self) -> BoundedMapSync[R]:
        self._workers.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Start nothing more, and wait for running items: threads can't be cancelled."""
        self._leave_by("it was closed")
        self._workers.stop()
        while not self._workers.finished:
            self._workers.wait(results=False)
        self._flow.forget_results()
        with suppress(Exception):
            self._conclude(silently=True)

    def __del__(self) -> None:
        if hasattr(self, "_workers"):
            self._workers.stop()

    def _leave(self) -> None:
        """Stop because the loop was left; nobody waits for the end."""
        if self._workers.opened:
            self._leave_by("a loop over it was left early")
            self._workers.stop()


class _Iteration(Iterator[R]):
    """One ``for``; garbage-collected when the loop is left early."""

    __slots__ = ("_map",)

    def __init__(self, bounded: BoundedMapSync[R]) -> None:
        self._map = bounded

    def __next__(self) -> R:
        return self._map.__next__()

    def close(self) -> None:
        """Close the run, as `BoundedMapSync.close` does."""
        self._map.close()

    def __del__(self) -> None:
        self._map._leave()


def bounded_map_sync(
    fn: Callable[[T], R],
    source: Iterable[T],
    limit: int | None = None,
    **settings: Unpack[MapSettings[T]],
) -> BoundedMapSync[R]:
    """`bounded_map` for a plain function and a caller without an event loop.

    Takes the same arguments; ``on_cancel`` makes no difference, since what runs in
    a thread always finishes.
    """
    return BoundedMapSync(fn, source, check_settings(limit, settings))


def run_bounded_sync(
    fn: Callable[[T], Any],
    source: Iterable[T],
    limit: int | None = None,
    **settings: Unpack[MapSettings[T]],
) -> Report:
    """`run_bounded` for a plain function and a caller without an event loop."""
    run: BoundedMapSync[Any] = BoundedMapSync(
        fn, source, check_settings(limit, settings), consumed=False
    )
    for _ in run:
        pass  # there are no results: this waits for the end
    return run.report
