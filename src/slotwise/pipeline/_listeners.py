"""One-shot callbacks for whoever waits for a result or for the end of a run."""

from __future__ import annotations

from collections.abc import Callable


class Listeners:
    """Callbacks to call when something has happened; the owner's lock guards them."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def listen(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def notify(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
