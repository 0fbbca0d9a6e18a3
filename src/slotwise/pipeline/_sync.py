"""bounded_map_sync and run_bounded_sync: bounded runs for plain threads, without asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar, Unpack, cast

from slotwise._core.twins import refuse_to_block_a_loop
from slotwise.pipeline._report import Report
from slotwise.pipeline._results import NOTHING
from slotwise.pipeline._run import Run, carry
from slotwise.pipeline._settings import MapSettings, Settings, check_settings
from slotwise.pipeline._thread_workers import ThreadWorkers

T = TypeVar("T")
R = TypeVar("R")


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
