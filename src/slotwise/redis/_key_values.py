"""KeyValues: what a request tells the server about its keys: their values and weights.

The server knows the values of the keys in use, and this process remembers those of idle ones
(`IdleKeys`). Functions of the user's are called for the others, before anything is requested.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise._core.idle_keys import IdleKeys
from slotwise._core.paths import Path, TierSpec, weight_for
from slotwise.redis._writing import write_node


class KeyValues:
    """The tiers of an object whose keys have values of their own, or weights."""

    def __init__(self, tiers: Sequence[TierSpec]) -> None:
        self._tiers = tiers
        self._by_key = [index for index, tier in enumerate(tiers) if tier.by_key]
        weighed = (index for index, tier in enumerate(tiers) if tier.weight_of is not None)
        self._weighed = next(weighed, None)

    def __bool__(self) -> bool:
        """Whether a request has anything to tell."""
        return bool(self._by_key) or self._weighed is not None

    def of(self, path: Path, idle: IdleKeys) -> tuple[list[tuple[int, str, int]], str]:
        """Return tier, key and value of each key with a value of its own, and what to send."""
        values = [self._value_of(tier, path[tier], idle) for tier in self._by_key]
        words = [f"{write_node(tier, key)}={value}" for tier, key, value in values]
        if self._weighed is not None:
            node = write_node(self._weighed, path[self._weighed])
            words.insert(0, f"{node}|{weight_for(self._tiers, path)!r}")
        return values, " ".join(words)

    def _value_of(self, tier: int, key: str | None, idle: IdleKeys) -> tuple[int, str, int]:
        assert key is not None
        value = idle.value_of(tier, key)
        if value is None:
            value = self._tiers[tier].ask(key)
        return tier, key, value
