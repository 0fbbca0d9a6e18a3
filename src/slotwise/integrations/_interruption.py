"""Interruption: end what a task is doing without ending the task."""

from __future__ import annotations

import asyncio


class Interruption:
    """Cancels the current task on request, and distinguishes that from a cancellation by others.

    To be made in the task itself. When what may be interrupted is over, the task calls `ended`,
    and passes a CancelledError on unless that returns True.
    """

    __slots__ = ("_before", "_loop", "_over", "_task", "reason")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = task.get_loop()
        self._before = task.cancelling()
        self._over = False
        self.reason: str | None = None

    def interrupt(self, reason: str) -> None:
        """Cancel what the task does, unless it is over; from any thread or a signal handler."""
        try:
            # Not at once: a task that cancels itself would be cancelled at its next await,
            # which may be outside of what is to be interrupted.
            self._loop.call_soon_threadsafe(self._cancel, reason)
        except RuntimeError:  # the loop is closed
            pass

    def _cancel(self, reason: str) -> None:
        if self.reason is None and not self._over:
            self.reason = reason
            self._task.cancel()

    def give_up(self) -> None:
        """Interrupt nothing from now on; what has been interrupted already stays so."""
        if self.reason is None:
            self._over = True

    def ended(self) -> bool:
        """Return whether a CancelledError was that of `interrupt`, and of nobody else."""
        if self._over:
            return False
        self._over = True
        return self.reason is not None and self._task.uncancel() <= self._before
