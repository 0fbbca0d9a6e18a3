"""Run a callback at SIGTERM, before the handler that a server has installed.

There is one handler for all middlewares of the process. What they do about it is up to them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class _ChainedHandler:
    """Calls all callbacks at SIGTERM, then the handler that was there before.

    An event loop's own handlers still run: they are woken by the number of the signal, whatever the
    Python handler is.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        # Somebody else may put a handler in front of ours that calls ours, and we ours in front of
        # that: whoever is called by its own predecessor goes on to the one before.
        self._previous: list[Handler] = []
        self._depth = 0

    def add(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at SIGTERM from now on, before all other handlers so far.

        If there is no handler, nothing is done: SIGTERM ends the process at once. Only the main
        thread can install handlers; elsewhere this has no effect.
        """
        present = signal.getsignal(signal.SIGTERM)
        if present != self.handle:
            if not callable(present):
                return
            self._previous.append(present)
            try:
                signal.signal(signal.SIGTERM, self.handle)
            except ValueError:  # not the main thread
                self._previous.pop()
                return
        if callback not in self._callbacks:
            self._callbacks.append(callback)

    def remove(self, callback: Callable[[], None]) -> None:
        """Put the former handler back, unless somebody else needs ours, or has installed theirs."""
        if callback not in self._callbacks:
            return
        self._callbacks.remove(callback)
        if not self._callbacks and signal.getsignal(signal.SIGTERM) == self.handle:
            try:
                signal.signal(signal.SIGTERM, self._previous[-1])
            except ValueError:  # not the main thread
                return
            self._previous.pop()

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth == 0:
            for callback in list(self._callbacks):
                callback()
        self._depth += 1
        try:
            if self._depth <= len(self._previous):
                self._previous[-self._depth](number, frame)
        finally:
            self._depth -= 1


handler = _ChainedHandler()
