"""Run: what the consumers of a run have in common: its report, and how it ended, told once.

How they wait for results is in `_bounded` and `_bounded`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from slotwise._core.redaction import redacted_repr
from slotwise.pipeline._flow import Flow
from slotwise.pipeline._report import Report, not_an_end
from slotwise.pipeline._settings import Settings, is_coroutine_function

R = TypeVar("R")


class Run(Generic[R]):
    """One run, as its consumer sees it."""

    def __init__(
        self, fn: Callable[[Any], Any], source: Any, settings: Settings, *, consumed: bool = True
    ) -> None:
        self._fn = fn
        self._in_loop = is_coroutine_function(fn)
        self._source = _iterator_of(source)
        self._settings = settings
        self._concluded = False  # nobody is left who could mistake this end for success
        self._left: str | None = None  # how the consumer left before the end
        self._flow = Flow(settings, consumed=consumed)

    @property
    def report(self) -> Report:
        """Counts so far; final after the run has ended, however it ended."""
        return self._flow.report

    def _leave_by(self, how: str) -> None:
        """Note that the consumer left before the end; ``how`` completes the message."""
        if not self._concluded and self._left is None:
            self._left = how

    def _refuse_if_left(self) -> None:
        """Raise if the run was left: missing results must not look like the end of the source."""
        if self._left is not None:
            raise RuntimeError(
                f"this run ended early: {self._left}; to continue after"
                f" leaving a loop, keep its iterator: 'results = aiter(run)' or 'iter(run)'"
            )

    def _conclude(self, *, silently: bool = False) -> None:
        """Report progress one last time, and raise the error that ended the run, once.

        Args:
            silently: don't raise; for callers that close the run.
        """
        flow, hook = self._flow, self._settings.on_progress
        is_first, self._concluded = not self._concluded, True
        error = flow.error if is_first and not silently else None
        flow.report._end()
        try:
            if is_first and hook is not None:
                hook(flow.report)
        except Exception as broken:
            if error is None:
                raise not_an_end(broken) from None
        if error is not None:
            carry(error, flow.report)
            raise error


def carry(error: BaseException, report: Report) -> None:
    """Attach the report to an exception, so that it tells how far the run got."""
    with suppress(Exception):  # it may not accept attributes
        error.report = report  # type: ignore[attr-defined]


def _iterator_of(source: Any) -> Iterator[Any] | AsyncIterator[Any]:
    if isinstance(source, AsyncIterable):
        return aiter(source)
    try:
        iterator: Iterator[Any] = iter(source)
    except TypeError:
        raise TypeError(
            f"source must be an iterable or async iterable, not {redacted_repr(source)}"
        ) from None
    return iterator
