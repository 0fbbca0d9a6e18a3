"""A ledger of one node, driven as a semaphore: its tier and its path go without saying."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger

PATH = (None,)


class Claim(PathClaim):
    """A claim for a number of slots."""

    def __init__(
        self, key: Hashable, slots: int = 1, ttl: float | None = None, head_start: int = 0
    ) -> None:
        super().__init__(key, None if slots == 1 else (slots,), ttl, head_start)


class Ledger(PathLedger[Any]):
    """The verbs of a semaphore, by those of paths."""

    def __init__(self, value: int) -> None:
        super().__init__([value])
        self.node()

    @property
    def value(self) -> int:
        value: int = self.node().value
        return value

    @property
    def in_use(self) -> int:
        in_use: int = self.node().in_use
        return in_use

    @property
    def paused_until(self) -> float:
        until: float = self.node().paused_until
        return until

    def request(self, claim: Any, now: float = 0.0, *, wait_until: float | None = None) -> Any:  # type: ignore[override]
        return super().request(claim, PATH, now, wait_until=wait_until)

    def try_request(self, claim: Any, now: float = 0.0) -> bool:  # type: ignore[override]
        return super().try_request(claim, PATH, now)

    def resize(self, value: int, now: float = 0.0) -> Any:  # type: ignore[override]
        return super().resize(0, value, None, now)

    def pause(self, until: float) -> None:  # type: ignore[override]
        super().pause(0, until)

    def reopen(self, now: float = 0.0) -> Any:  # type: ignore[override]
        super().reopen()
        return self.end_pauses(now)
