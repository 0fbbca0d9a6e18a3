"""Tell the consumer of a run how it ended, exactly once."""

from __future__ import annotations

from contextlib import suppress

from slotwise.pipeline._errors import not_an_end
from slotwise.pipeline._flow import Flow
from slotwise.pipeline._report import Report


class Ending:
    """The end of one run, as its consumer sees it."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._concluded = False  # nobody is left who could mistake this end for success
        self._progress_reported = False
        self.left: str | None = None  # how the consumer left before the end

    def leave(self, how: str) -> None:
        """Note that the consumer left before the end; ``how`` completes the message."""
        if not self._concluded and self.left is None:
            self.left = how

    def refuse_if_left(self) -> None:
        """Raise if the run was left: missing results must not look like the end of the source."""
        if self.left is not None:
            raise RuntimeError(
                f"this run ended early: {self.left}; to continue after"
                f" leaving a loop, keep its iterator: 'results = aiter(run)' or 'iter(run)'"
            )

    def conclude(self, *, silently: bool = False) -> None:
        """Report progress one last time, and raise the error that ended the run, once.

        Args:
            silently: don't raise; for callers that close the run.
        """
        flow = self._flow
        error = None if silently or self._concluded else flow.error
        self._concluded = True
        flow.report._end()
        try:
            self._report_progress()
        except Exception as broken:
            if error is None:
                raise not_an_end(broken) from None
        if error is not None:
            carry(error, flow.report)
            raise error

    def _report_progress(self) -> None:
        hook = self._flow.settings.on_progress
        if hook is not None and not self._progress_reported:
            self._progress_reported = True
            hook(self._flow.report)


def carry(error: BaseException, report: Report) -> None:
    """Attach the report to an exception, so that it tells how far the run got."""
    with suppress(Exception):  # it may not accept attributes
        error.report = report  # type: ignore[attr-defined]
