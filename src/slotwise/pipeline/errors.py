"""What a pipeline raises of its own; all else is the work's or the source's exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.pipeline.report import Report


class MemoryLimitExceeded(SlotwiseError, MemoryError):
    """Memory rose above the guard's second mark; what had started was finished first."""

    report: Report | None = None
