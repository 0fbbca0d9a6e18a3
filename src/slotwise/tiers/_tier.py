"""Tier: one limit on a path from narrow to wide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import check_limit
from slotwise._core.overload import check_max_waiting
from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._core.redaction import kind_of, redacted_repr

# Parameters of `Tiers.acquire` that can't be keys too.
RESERVED = frozenset({"self", "slots", "timeout", "label", "costs", "priority", "on_full"})
# The same for `Tiers.pause`, which takes keys, and for `Tiers.settle`, which takes costs.
_OF_PAUSE, _OF_SETTLE = "seconds", "acquisition_id"


@dataclass(frozen=True, slots=True)
class Tier:
    """A limit of ``value`` slots; with ``keyed``, of ``value`` slots for each key.

    A value of 0 means unlimited: it never blocks, but what is held is still counted. The name of a
    keyed tier is also the name of its argument. The value of a keyed tier may be a function of the
    key: each process calls it when a key appears that it doesn't remember, in the thread of whoever
    asks for a slot, so it must not block. While the key is in use its value stays; that of
    `Tiers.resize` wins. ``keyed`` may also be the name of another tier, whose key it uses.

    The value may also be an `Adaptive`, which finds the number; each key of a keyed tier finds its
    own.

    With a ``rate`` it has no slots: what is taken comes back by time alone. What one
    acquisition takes is its cost, 1 by default; it is passed by the tier's name or, where
    that is the name of a key, in ``costs``.

    While ``max_waiting`` requests wait whose path goes through the tier, or through the same key
    of it, a newcomer that would have to wait there gets a LimitFull; None lets any number wait.
    """

    name: str
    value: int | Adaptive | Callable[[str], int] | None = None
    keyed: bool | str = False
    rate: Rate | None = None
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"the name of a tier must be a str, not {kind_of(self.name)}")
        if self.name in RESERVED:
            raise ValueError(f"a tier can't be called {self.name!r}: acquire() has that parameter")
        if self.name == _OF_PAUSE and self.keyed:
            raise ValueError("a keyed tier can't be called 'seconds': pause() has that parameter")
        if self.name == _OF_SETTLE and self.rate is not None:
            raise ValueError("a rate can't be called 'acquisition_id': settle() has that parameter")
        if not self.name.isidentifier():
            raise ValueError(
                f"a tier can't be called {redacted_repr(self.name)}: its name must be usable"
                f" as a keyword argument"
            )
        if not isinstance(self.keyed, bool | str):
            raise TypeError(
                f"keyed must be True, False or the name of a tier, not {kind_of(self.keyed)}"
            )
        check_max_waiting(self.max_waiting)
        if self.rate is not None:
            if not isinstance(self.rate, Rate):
                raise TypeError(f"rate must be a Rate, not {kind_of(self.rate)}")
            if self.value is not None:
                raise TypeError(f"tier {self.name!r} can't have both a value and a rate")
        elif self.value is None:
            raise TypeError(f"tier {self.name!r} needs a value or a rate")
        elif isinstance(self.value, Adaptive):
            pass
        elif not callable(self.value):
            value = check_limit(f"the value of tier {self.name!r}", self.value)
            object.__setattr__(self, "value", value)
        elif not self.keyed:
            raise TypeError(
                f"the value of tier {self.name!r} is a function of a key, so it needs keyed=True"
            )

    @property
    def spec(self) -> TierSpec:
        keyed = bool(self.keyed)
        key_of = self.keyed if isinstance(self.keyed, str) else None
        if callable(self.value):
            spec = TierSpec(self.name, 0, keyed, by_key=True, key_of=key_of, value_of=self.value)
        elif isinstance(self.value, Adaptive):
            start, rules = self.value.start, self.value.written
            spec = TierSpec(
                self.name, start, keyed, key_of=key_of, adaptive=self.value, rules=rules
            )
        else:
            value = self.rate or self.value
            assert value is not None
            spec = TierSpec(self.name, value, keyed, key_of=key_of)
        return replace(spec, max_waiting=self.max_waiting)
