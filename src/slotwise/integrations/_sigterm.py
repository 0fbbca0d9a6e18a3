"""Hear of SIGTERM before the handler that a server has installed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class SigtermListener:
    """Calls ``callback`` at SIGTERM, then the handler that was there before.

    An event loop's own handlers go on too: they are woken by the number of the signal, whatever
    the Python handler is. Only the main thread can install it; elsewhere nothing is heard.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._previous: Callable[[int, FrameType | None], object] | None = None

    def install(self) -> None:
        """Put it in front of the present handler; without one, SIGTERM ends the process at once."""
        present = signal.getsignal(signal.SIGTERM)
        if not callable(present) or present == self._handle:
            return
        previous = self._previous
        self._previous = present
        try:
            signal.signal(signal.SIGTERM, self._handle)
        except ValueError:  # not the main thread
            self._previous = previous

    def remove(self) -> None:
        """Put the former handler back, unless somebody else has installed theirs since."""
        if self._previous is not None and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._callback()
        if self._previous is not None:
            self._previous(number, frame)
