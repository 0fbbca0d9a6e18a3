"""Ending: how a run tells its consumer that it is over, and with what; once."""

from __future__ import annotations

from contextlib import suppress

from slotwise.pipeline._errors import not_an_end
from slotwise.pipeline._flow import Flow
from slotwise.pipeline._report import Report


class Ending:
    """The end of one run, as its consumer sees it."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._told = False  # nobody is left who could take this end for a success
        self._told_progress = False
        self._left: str | None = None

    def leave(self, how: str) -> None:
        """The consumer went away before it was told the end: ``how``, in words."""
        if not self._told and self._left is None:
            self._left = how

    def refuse_if_left(self) -> None:
        """Raise if the run was left: what is missing must not look like an empty rest."""
        if self._left is not None:
            raise RuntimeError(
                f"this run is over before its end: {self._left}; to continue after"
                f" leaving a loop, keep its iterator: 'results = aiter(run)' or 'iter(run)'"
            )

    def conclude(self, *, silently: bool = False) -> None:
        """Tell the hook a last time, and raise what the run ended with, once.

        Args:
            silently: whoever closes a run does not ask for its error.
        """
        flow = self._flow
        error = None if silently or self._told else flow.error
        self._told = True
        flow.report._end()
        try:
            self._tell_progress()
        except Exception as broken:
            if error is None:
                raise not_an_end(broken) from None
        if error is not None:
            carry(error, flow.report)
            raise error

    def _tell_progress(self) -> None:
        hook = self._flow.settings.on_progress
        if hook is not None and not self._told_progress:
            self._told_progress = True
            hook(self._flow.report)


def carry(error: BaseException, report: Report) -> None:
    """Let an exception tell how far the run got."""
    with suppress(Exception):  # it may have no room for attributes
        error.report = report  # type: ignore[attr-defined]
