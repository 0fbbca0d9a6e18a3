"""IdleKeys: the keys that a Tiers object has used, and that are idle in this process now.

A server, or the file that processes share, forgets a key as soon as nobody holds or waits for
it, so this is all that is remembered of idle ones; it is only counted and shown.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from math import inf

from slotwise._core import fork
from slotwise._core.paths import Path, TierSpec


class IdleKeys:
    """The keys of keyed tiers that this object has used: busy ones counted, idle ones dated."""

    # Between any two calls a key is in at most one of the first two tables of its tier, and
    # one with a value is in one of them.

    def __init__(self, tiers: tuple[TierSpec, ...], most: float = inf) -> None:
        """``most``: how many idle ones of a tier are remembered."""
        self._most = most
        self.tiers = tiers
        self._keyed = [index for index, tier in enumerate(tiers) if tier.keyed]
        self._lock = fork.new_lock()
        self._busy: dict[int, dict[str, int]] = {index: {} for index in self._keyed}
        # The longest idle first.
        self._idle: dict[int, OrderedDict[str, float]] = {
            index: OrderedDict() for index in self._keyed
        }
        # For tiers where each key has its own value: what the user's function returned.
        self._values: dict[int, dict[str, int]] = {index: {} for index in self._keyed}

    def value_of(self, tier: int, key: str) -> int | None:
        """The value of a key, if it was remembered and the key has not been forgotten."""
        return self._values[tier].get(key)

    def remember(self, values: list[tuple[int, str, int]]) -> None:
        """Remember values of keys that were entered: tier, key and value."""
        for tier, key, value in values:
            self._values[tier].setdefault(key, value)

    def enter(self, path: Path) -> None:
        with self._lock:
            for index in self._keyed:
                key, busy = str(path[index]), self._busy[index]
                busy[key] = busy.get(key, 0) + 1
                self._idle[index].pop(key, None)

    def leave(self, path: Path) -> None:
        now = time.monotonic()
        with self._lock:
            for index in self._keyed:
                key, busy, idle = str(path[index]), self._busy[index], self._idle[index]
                left = busy.pop(key, 0) - 1
                if left > 0:
                    busy[key] = left
                elif left == 0:
                    idle[key] = now
                    if len(idle) > self._most:
                        self._values[index].pop(idle.popitem(last=False)[0], None)

    def keys(self, tier: int) -> list[str]:
        """The idle ones, the longest idle first."""
        with self._lock:
            return list(self._idle[tier])

    def forget(self, tier: int, older_than: float, keep_at_most: int | None) -> int:
        before = time.monotonic() - older_than
        count = 0
        with self._lock:
            idle = self._idle[tier]
            kept = len(idle) if keep_at_most is None else keep_at_most
            while idle:
                key, since = next(iter(idle.items()))
                if since > before and len(idle) <= kept:
                    break
                del idle[key]
                self._values[tier].pop(key, None)
                count += 1
        return count
