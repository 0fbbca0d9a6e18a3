"""Collect the warnings of a finished run: leaked permits and errors nobody retrieved.

A report is collected first and issued later, because `explore` collects those of
many runs and issues each once.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotwise.effects._errors import PermitLeakWarning, UnretrievedTaskError
from slotwise.effects._permits import leaks_of

if TYPE_CHECKING:
    from slotwise.effects._scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class WarningReport:
    """One warning, with the line it is about."""

    category: type[Warning]
    message: str
    filename: str
    line: int


def collect(scheduler: Scheduler) -> list[WarningReport]:
    """Return the reports of a run whose tasks have all ended."""
    reports = []
    for semaphore in scheduler.left_behind:
        for leak in leaks_of(semaphore):
            message = f"never released: {leak}"
            reports.append(WarningReport(PermitLeakWarning, message, leak.filename, leak.line))
    for task in scheduler.failed:
        error = task._error
        if error is None or task._retrievals > 0 or error is scheduler.abort:
            continue
        frames = traceback.extract_tb(task._traceback)
        filename, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        message = (
            f"task {task.name!r} failed and nobody waited for it:"
            f" {type(error).__name__}: {error}{f' (at {filename}:{line})' if filename else ''}"
        )
        reports.append(WarningReport(UnretrievedTaskError, message, filename, line))
    return reports


def issue(reports: Iterable[WarningReport], error: BaseException | None = None) -> None:
    """Send the reports through `warnings`.

    Where a filter turns warnings into exceptions, all are issued before the
    first of those is raised; if there is an ``error`` that is going to be raised
    anyway, they become notes on it.
    """
    raised: Warning | None = None
    for report in reports:
        try:
            warnings.warn_explicit(report.message, report.category, report.filename, report.line)
        except report.category as warning:
            if error is not None:
                error.add_note(str(warning))
            elif raised is None:
                raised = warning
            else:
                raised.add_note(str(warning))
    if raised is not None:
        raise raised
