"""Tier: one limit on a path from narrow to wide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slotwise._core.arguments import check_limit
from slotwise._core.paths import TierSpec
from slotwise._core.redaction import redacted_repr

# Parameters of `Tiers.acquire` that can't be keys too.
RESERVED = frozenset({"self", "slots", "timeout", "label"})


@dataclass(frozen=True, slots=True)
class Tier:
    """A limit of ``value`` slots; with ``keyed``, of ``value`` slots for each key.

    A value of 0 is no limit: it never blocks, and what is held is counted all the
    same. The name of a keyed tier is also the name of its argument. The value of a keyed
    tier may be a function of the key: each process calls it when a key appears that it
    doesn't remember, in the thread of whoever asks for a slot, so it must not block. While
    the key is in use its value stays; that of `Tiers.resize` wins.
    """

    name: str
    value: int | Callable[[str], int]
    keyed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"the name of a tier must be a str, not {redacted_repr(self.name)}")
        if self.name in RESERVED:
            raise ValueError(f"a tier can't be called {self.name!r}: acquire() has that parameter")
        if not self.name.isidentifier():
            raise ValueError(
                f"a tier can't be called {redacted_repr(self.name)}: its name is that of a keyword"
                f" argument"
            )
        if not isinstance(self.keyed, bool):
            raise TypeError(f"keyed must be True or False, not {redacted_repr(self.keyed)}")
        if not callable(self.value):
            check_limit(f"the value of tier {self.name!r}", self.value)
        elif not self.keyed:
            raise TypeError(
                f"the value of tier {self.name!r} is a function of a key, so it needs keyed=True"
            )

    @property
    def spec(self) -> TierSpec:
        if callable(self.value):
            return TierSpec(self.name, 0, self.keyed, by_key=True, value_of=self.value)
        return TierSpec(self.name, self.value, self.keyed)
