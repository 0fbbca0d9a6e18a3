"""Tier: one limit on a path from narrow to wide."""

from __future__ import annotations

from dataclasses import dataclass

from slotwise._core.paths import TierSpec
from slotwise._core.redaction import redacted_repr

# Parameters of `Tiers.acquire` that can't be keys too.
RESERVED = frozenset({"self", "slots", "timeout", "label"})


@dataclass(frozen=True, slots=True)
class Tier:
    """A limit of ``value`` slots; with ``keyed``, of ``value`` slots for each key.

    A value of 0 is no limit: it never blocks, and what is held is counted all the
    same. The name of a keyed tier is also the name of its argument.
    """

    name: str
    value: int
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
        check_limit(f"the value of tier {self.name!r}", self.value)
        if not isinstance(self.keyed, bool):
            raise TypeError(f"keyed must be True or False, not {redacted_repr(self.keyed)}")

    @property
    def spec(self) -> TierSpec:
        return TierSpec(self.name, self.value, self.keyed)


def check_limit(what: str, given: object) -> int:
    """An int of at least 0, which is no limit."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{what} must be an int, not {redacted_repr(given)}")
    if given < 0:
        raise ValueError(f"{what} must be at least 0, which is no limit; not {given}")
    return given
