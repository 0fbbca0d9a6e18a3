"""News: whoever waits for a result or for the end is called, once."""

from __future__ import annotations

from collections.abc import Callable


class Listeners:
    """Calls to make when something has happened; whose lock guards them is the owner's."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def listen(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def tell(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
