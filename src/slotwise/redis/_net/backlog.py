"""Backlog: the calls that wait for a connection. The owner says when an attempt has failed."""

from __future__ import annotations

from collections.abc import Iterator

from slotwise.errors import BackendError
from slotwise.redis._config import ServerSettings
from slotwise.redis._net.call import Call


class Backlog:
    """Calls in the order in which they were made, in the thread of their event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._calls: dict[Call, None] = {}  # in order, and any can be withdrawn at once

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def is_exhausted(self, call: Call, more: int = 0) -> bool:
        """Whether a call has failed ``attempts`` + ``more`` times."""
        return not call.patient and call.tries >= self._settings.config.attempts + more

    def add(self, call: Call) -> None:
        self._calls[call] = None

    def put_first(self, calls: list[Call]) -> None:
        """Add calls that were made before all others, including exhausted ones."""
        self._calls = dict.fromkeys(calls) | self._calls

    def withdraw(self, call: Call) -> bool:
        """Remove a call that was not sent; return whether it was here."""
        if not call.sent and call in self._calls:
            del self._calls[call]
            return True
        return False

    def take(self) -> list[Call]:
        """Remove and return all calls, to be sent or failed."""
        calls, self._calls = self._calls, {}
        return list(calls)

    def take_exhausted(self) -> list[Call]:
        exhausted = [call for call in self._calls if self.is_exhausted(call)]
        for call in exhausted:
            del self._calls[call]
        return exhausted

    def fail_attempt(self, error: BackendError, *, hopeless: bool = False) -> None:
        """Count a failed attempt to connect; fail the exhausted calls, or all if it is hopeless."""
        for call in self._calls:
            call.tries += 1
        for call in self.take() if hopeless else self.take_exhausted():
            call.on_done(call, error)
