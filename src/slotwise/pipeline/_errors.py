"""The exceptions that pipelines raise themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.pipeline._report import Report


class MemoryLimitExceeded(SlotwiseError, MemoryError):
    """Memory rose above the guard's stop mark; items in flight were finished first."""

    report: Report | None = None


def not_an_end(error: BaseException) -> BaseException:
    """Return ``error``, or a RuntimeError instead of one that a loop would take for its end.

    As generators do since PEP 479: StopIteration from a called function is a bug in it, not the end
    of the source.
    """
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failure = RuntimeError(f"{type(error).__name__} was raised, which doesn't end the run")
    failure.__cause__ = error
    return failure
