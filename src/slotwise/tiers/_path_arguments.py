"""PathArguments: what the arguments of a call through tiers mean: a path, and what it needs.

It checks them, and the names and keys of tiers in general. Nothing here acquires anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import check_count, check_limit, check_text
from slotwise._core.control import Where
from slotwise._core.messages import fixed_value
from slotwise._core.paths import Needs, Path, RankedNeeds
from slotwise._core.priorities import check_priority
from slotwise._core.rates import Rate
from slotwise._core.redaction import kind_of, redacted_repr
from slotwise.tiers._tier import Tier

# Compared by identity, which is quick and tells it from True and 1.0.
ONE = 1
NO_PRIORITY = 0

# How many slots: of every tier, or by the names of tiers.
Slots: TypeAlias = int | Mapping[str, int]


class Resolved(RankedNeeds):
    """What is needed of each tier, checked."""


class PathArguments:
    """The tiers by name, and how calls name their keys, slots and costs.

    Raises:
        ValueError: a tier uses the key of a tier without keys.
    """

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self.tiers = tiers
        # Those with keys of their own, those that use the key of another, and rates.
        self.keyed = frozenset(name for name, tier in tiers.items() if tier.keyed is True)
        self.key_of = {
            name: tier.keyed for name, tier in tiers.items() if isinstance(tier.keyed, str)
        }
        self.rates = frozenset(name for name, tier in tiers.items() if tier.rate is not None)
        self.named_costs = self.rates - self.keyed
        self.widest: Where = ([*tiers][-1], None)  # to pause it is to pause all
        self.one_of_each = Resolved([1] * len(tiers))
        self.defaults: Needs = (*self.one_of_each,)
        self.without_keys: Path | None = None if self.keyed else (None,) * len(tiers)
        places = [(at, name) for at, name in enumerate(tiers) if name in self.named_costs]
        self.places_of_costs = tuple(places)
        for own, other in self.key_of.items():
            if other not in self.keyed:
                raise ValueError(f"tier {own!r} uses the key of {other!r}, which has none")

    def resolve(
        self,
        keys: dict[str, Any],
        slots: Slots,
        costs: Mapping[str, int] | None,
        priority: float = 0,
    ) -> tuple[Path, Slots | Resolved]:
        """The path, and what is needed of each tier if there are rates or a head start."""
        if priority is not NO_PRIORITY:
            path, resolved = self.resolve(keys, slots, costs)
            return path, self.with_priority(resolved, priority)
        if not self.rates:
            if costs is not None:
                raise TypeError("these tiers have no rate")
            return self.path(keys), slots
        if costs is None and slots is ONE and keys.keys() == self.keyed:
            return self.path(keys), self.one_of_each
        if costs is not None and not isinstance(costs, Mapping):
            raise TypeError(f"costs must be a dict of tier names to ints, not {kind_of(costs)}")
        given = dict(costs or {})
        for name in self.named_costs:
            if name in keys:
                if name in given:
                    raise TypeError(f"the cost of {name!r} was given twice")
                given[name] = keys.pop(name)
        return self.path(keys), self.with_costs(slots, given)

    def take_costs(self, keys: dict[str, Any]) -> Needs:
        """What is needed of each tier by the costs among ``keys``, which are taken out."""
        needs: list[int] | None = None
        for index, name in self.places_of_costs:
            if name in keys:
                cost = keys.pop(name)
                if type(cost) is not int or cost < 1:
                    cost = check_count(f"the cost of {name!r}", cost)
                if needs is None:
                    needs = [*self.defaults]
                needs[index] = cost
        return self.defaults if needs is None else (*needs,)

    def with_priority(self, slots: Slots | Resolved, priority: float) -> Slots | Resolved:
        """What is needed of each tier, with a head start if there is one."""
        head_start = 0 if priority is NO_PRIORITY else check_priority(priority)
        if not head_start:
            return slots
        needs = Resolved(self.needs(slots) or self.one_of_each)
        needs.head_start = head_start
        return needs

    def with_costs(self, slots: Slots | Resolved, costs: Mapping[str, int]) -> Resolved:
        """What is needed of each tier, where there are rates."""
        checked: dict[str, int] = {}
        for name, cost in costs.items():
            self.check_rate(name)
            checked[name] = check_count(f"the cost of {name!r}", cost)
        needs = self.needs(slots) or (1,) * len(self.tiers)
        return Resolved(
            checked.get(name, 1) if name in self.rates else need
            for name, need in zip(self.tiers, needs, strict=True)
        )

    def needs(self, slots: Slots | Resolved) -> Needs | None:
        """What ``slots`` takes of each tier; None for one slot of each."""
        if slots is ONE:
            return None
        if isinstance(slots, Resolved):
            return slots
        if isinstance(slots, Mapping):
            checked: dict[str, int] = {}
            for name, count in slots.items():
                self.check_tier(name, keyed=False)
                if name in self.rates:
                    raise ValueError(f"{name!r} is a rate: what is taken of it is a cost")
                checked[name] = check_count(f"the slots of tier {name!r}", count)
            needs = tuple(checked.get(name, 1) for name in self.tiers)
        else:
            needs = (check_count("slots", slots),) * len(self.tiers)
        return None if max(needs) == 1 else needs

    def costs_in(self, needs: Needs) -> dict[str, int]:
        pairs = zip(self.tiers, needs, strict=True)
        return {name: need for name, need in pairs if name in self.rates}

    def path(self, keys: dict[str, Any]) -> Path:
        """The path of these keys; an enum member or another subclass of str becomes plain text."""
        if keys.keys() != self.keyed:
            missing, unknown = self.keyed - keys.keys(), keys.keys() - self.keyed
            wrong = [f"missing: {', '.join(sorted(missing))}"] if missing else []
            wrong += [f"unknown: {', '.join(sorted(unknown))}"] if unknown else []
            known = ", ".join(name for name in self.tiers if name in self.keyed) or "no"
            raise TypeError(f"these tiers take {known} key(s); {'; '.join(wrong)}")
        for name, key in keys.items():
            if type(key) is not str or not key.isascii():
                keys[name] = check_key(name, key)
        if not self.key_of:
            return tuple(map(keys.get, self.tiers))
        return tuple(keys.get(self.key_of.get(name, name)) for name in self.tiers)

    def keys_of(self, path: Path) -> dict[str, str]:
        pairs = zip(self.tiers, path, strict=True)
        return {name: key for name, key in pairs if key is not None}

    def check_tier(self, tier: str, *, keyed: bool) -> None:
        if tier not in self.tiers:
            known = ", ".join(self.tiers)
            raise ValueError(f"there is no tier {redacted_repr(tier)}; there are: {known}")
        if keyed and not self.tiers[tier].keyed:
            raise TypeError(f"tier {tier!r} has no keys")

    def check_rate(self, name: str) -> None:
        self.check_tier(name, keyed=False)
        if name not in self.rates:
            raise TypeError(f"tier {name!r} has no rate")

    def check_settle(self, costs: Mapping[str, int]) -> None:
        for name in costs:  # whether there are any, and how much, the driver checks
            self.check_rate(name)

    def check_refill(self, tier: str, key: str | None) -> None:
        self.check_rate(tier)
        if bool(self.tiers[tier].keyed) is not (key is not None):
            raise TypeError(f"tier {tier!r} " + ("has keys" if key is None else "has no keys"))

    def check_resize(self, tier: str, value: int | Rate, key: str | None) -> int | Rate:
        """Return the value that a tier, or a key of it, is to have."""
        self.check_tier(tier, keyed=key is not None)
        if tier in self.rates:
            if not isinstance(value, Rate):
                raise TypeError(f"tier {tier!r} takes a Rate, not {kind_of(value)}")
        else:
            value = check_limit("value", value)
            options = self.tiers[tier].value
            if isinstance(options, Adaptive):
                options.check_value(value)
        if key is not None:
            check_key(tier, key)
        elif callable(self.tiers[tier].value):
            raise TypeError(f"each key of tier {tier!r} has its own value: resize a key")
        return value

    def check_adaptive(self, tier: str, key: str | None) -> Adaptive:
        self.check_tier(tier, keyed=key is not None)
        if key is not None:
            check_key(tier, key)
        options = self.tiers[tier].value
        if not isinstance(options, Adaptive):
            raise fixed_value(f"tier {tier!r}")
        return options

    def check_freeze(self, tier: str, value: int | None, key: str | None) -> int | None:
        """Return where a value is to be kept; None for where it is."""
        options = self.check_adaptive(tier, key)
        if value is None:
            return None
        value = check_count("value", value)
        options.check_value(value)
        return value

    def narrowest_key(self, path: Path) -> Where:
        """Return what a pause of a path applies to: its first tier with a key, or all."""
        named = zip(self.tiers, path, strict=True)
        return next(((name, key) for name, key in named if key is not None), self.widest)

    def paused_key(self, keys: Mapping[str, str]) -> Where:
        if len(keys) > 1:
            raise TypeError(f"at most one key can be paused at a time, not {', '.join(keys)}")
        for name, key in keys.items():
            self.check_tier(name, keyed=True)
            if name not in self.keyed:
                raise TypeError(f"tier {name!r} has the keys of {self.key_of[name]!r}: pause that")
            return name, check_key(name, key)
        return self.widest


def check_key(tier: str, key: object) -> str:
    """Return a key of a tier as plain text; raise unless it can be one."""
    if not isinstance(key, str):
        raise TypeError(f"the key of tier {tier!r} must be a str, not {kind_of(key)}")
    return check_text(f"the key of tier {tier!r}", key)
