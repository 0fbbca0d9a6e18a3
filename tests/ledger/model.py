"""A ledger that is obviously right: plain lists, everything looked up anew, no short cuts.

It is slow, knows no quick lane and keeps nothing that could be computed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from slotwise.errors import SemaphoreClosed


@dataclass
class Entry:
    """Somebody who holds or waits."""

    key: Hashable
    slots: int = 1
    ttl: float | None = None
    deadline: float | None = None
    numbers: list[int] = field(default_factory=list)


class Model:
    """What a ledger must do, said as simply as possible."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.closed = False
        self.paused_until = 0.0
        self.holding: list[Entry] = []
        self.waiting: list[Entry] = []  # in the order of arrival

    # -------------------------------------------------------------- looking

    @property
    def in_use(self) -> int:
        return sum(entry.slots for entry in self.holding)

    def lowest_free(self, how_many: int) -> list[int]:
        held = [number for entry in self.holding for number in entry.numbers]
        free = [n for n in range(1, len(held) + how_many + 1) if n not in held]
        return free[:how_many]

    def next_deadline(self) -> float:
        deadlines = [entry.deadline for entry in self.holding + self.waiting]
        deadlines.append(self.paused_until or None)
        return min((when for when in deadlines if when is not None), default=float("inf"))

    def find(self, entries: list[Entry], key: Hashable) -> Entry | None:
        return next((entry for entry in entries if entry.key == key), None)

    # ------------------------------------------------------------ the verbs

    def request(self, entry: Entry, now: float, wait_until: float | None) -> list[Hashable]:
        self._refuse(entry)
        entry.deadline = wait_until
        self.waiting.append(entry)
        return self._grant(now)

    def try_request(self, entry: Entry, now: float) -> bool:
        self._refuse(entry)
        if self.waiting or self.in_use + entry.slots > self.value or now < self.paused_until:
            return False
        self.waiting.append(entry)
        assert self._grant(now) == [entry.key]
        return True

    def release(self, key: Hashable, now: float) -> list[Hashable]:
        self.holding = [entry for entry in self.holding if entry.key != key]
        return self._grant(now)

    def cancel(self, key: Hashable, now: float) -> list[Hashable]:
        self.waiting = [entry for entry in self.waiting if entry.key != key]
        return self._grant(now)

    def expire(self, now: float) -> tuple[list[Hashable], list[Hashable], list[Hashable]]:
        def is_due(entry: Entry) -> bool:
            return entry.deadline is not None and entry.deadline <= now

        holders = [entry.key for entry in self.holding if is_due(entry)]
        waiters = [entry.key for entry in self.waiting if is_due(entry)]
        self.holding = [entry for entry in self.holding if not is_due(entry)]
        self.waiting = [entry for entry in self.waiting if not is_due(entry)]
        return holders, waiters, self._grant(now)

    def resize(self, value: int, now: float) -> tuple[list[Hashable], list[Hashable]]:
        self.value = value
        refused = [entry.key for entry in self.waiting if entry.slots > value]
        self.waiting = [entry for entry in self.waiting if entry.slots <= value]
        return refused, self._grant(now)

    def close(self) -> list[Hashable]:
        self.closed = True
        refused = [entry.key for entry in self.waiting]
        self.waiting = []
        return refused

    def reopen(self, now: float) -> list[Hashable]:
        self.closed = False
        self.paused_until = 0.0
        return self._grant(now)

    def pause(self, until: float) -> None:
        self.paused_until = max(self.paused_until, until)

    def retire(self) -> bool:
        if self.closed or self.holding or self.waiting or self.paused_until:
            return False
        self.closed = True
        return True

    # -------------------------------------------------------------- the rule

    def _refuse(self, entry: Entry) -> None:
        if self.closed:
            raise SemaphoreClosed
        if entry.slots > self.value:
            raise ValueError

    def _grant(self, now: float) -> list[Hashable]:
        """While the first in the queue fits, it gets the lowest numbers there are."""
        granted: list[Hashable] = []
        if now < self.paused_until:
            return granted
        self.paused_until = 0.0
        while self.waiting and self.in_use + self.waiting[0].slots <= self.value:
            entry = self.waiting.pop(0)
            entry.numbers = self.lowest_free(entry.slots)
            entry.deadline = None if entry.ttl is None else now + entry.ttl
            self.holding.append(entry)
            granted.append(entry.key)
        return granted
