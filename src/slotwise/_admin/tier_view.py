"""Take a snapshot of tiers, for every command that shows or changes them.

It is made of what a driver has found (`slotwise._core.found_tiers`), in calls of bounded cost.
How it is printed is up to the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, floor
from typing import Any

from slotwise._admin.backends import NotFound
from slotwise._admin.text import similar
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import KeyStats, TierSpec, TierStats
from slotwise._core.rates import Rate
from slotwise._core.stats import Claimant


@dataclass(frozen=True, slots=True)
class TierCounts:
    """How full a tier is, or one key of it; a value of 0 means unlimited."""

    key: str | None
    value: int
    held: int
    waiting: int
    rate: Rate | None = None  # in use; then the value is its burst
    level: float | None = None  # what is left of it
    full_in: float | None = None  # in how many seconds the rate is full
    paused_for: float = 0.0  # in how many seconds a pause ends
    frozen: bool = False  # whether an adaptive value is kept where it is

    def busyness(self) -> tuple[float, ...]:
        """Sorts the busiest first: those that are waited for, then the fullest."""
        return (-self.waiting, -self.taken / self.value if self.value else 0.0, -self.taken)

    @property
    def taken(self) -> float:
        """What is held, or used of a rate."""
        return self.held if self.level is None else self.value - self.level

    @property
    def rate_words(self) -> str | None:
        """600/60s, as `slotwise resize` takes it; None for slots."""
        return None if self.rate is None else f"{self.rate.count}/{self.rate.per:g}s"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: slots have a value, a rate has none but a burst."""
        value, burst = (self.value, None) if self.rate is None else (None, self.value)
        return asdict(self) | {"value": value, "rate": self.rate_words, "burst": burst}


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier: all of it, and its keys with the busiest first."""

    spec: TierSpec
    total: TierCounts
    keys: tuple[TierCounts, ...]

    def rows(self, most: int | None) -> list[TierCounts]:
        """The tier itself if it has no keys in use, else at most ``most`` keys, and the rest."""
        if not self.keys:
            return [self.total]
        shown, rest = self.keys[:most], self.keys[len(self.keys[:most]) :]
        if not rest:
            return [*shown]
        held, waiting = sum(each.held for each in rest), sum(each.waiting for each in rest)
        each, rate = self.total.value, self.total.rate
        return [*shown, TierCounts(f"({len(rest)} more)", each, held, waiting, rate)]

    def as_dict(self, most: int | None = None) -> dict[str, Any]:
        counts = self.total.as_dict()
        del counts["key"]
        keys = [each.as_dict() for each in self.keys[:most]] if self.spec.keyed else None
        return {
            "name": self.spec.name,
            "keyed": self.spec.keyed,
            **counts,
            "keys_in_use": len(self.keys) if self.spec.keyed else None,
            "keys": keys,
        }


@dataclass(frozen=True, slots=True)
class TiersView:
    """The tiers of one name at one moment, narrow to wide."""

    found: FoundTiers
    tiers: tuple[TierView, ...]

    @property
    def closed(self) -> str:
        """Why they are closed, or that they are; empty if they are not."""
        closure = self.found.closure
        return "" if closure is None else closure.reason or "closed"

    def paused(self) -> list[tuple[str, float]]:
        """What is paused, and in how many seconds that ends: tiers, and keys by themselves."""
        return [
            (tier.spec.node(counts.key) if counts.key is not None else tier.spec.name, left)
            for tier in self.tiers
            for counts in (tier.total, *tier.keys)
            if (left := counts.paused_for) > 0
            and (counts.key is None or left > tier.total.paused_for)
        ]

    def frozen(self) -> list[str]:
        """What is frozen: whole tiers, and keys by themselves."""
        return [
            tier.spec.node(counts.key) if counts.key is not None else tier.spec.name
            for tier in self.tiers
            for counts in (tier.total, *tier.keys)
            if counts.frozen and (counts.key is None or not tier.total.frozen)
        ]

    def as_dict(self, most: int | None = None) -> dict[str, Any]:
        found = self.found
        return {
            "name": found.name,
            "closed": found.closure is not None,
            "reason": None if found.closure is None else found.closure.reason,
            "tiers": [tier.as_dict(most) for tier in self.tiers],
        }

    def only(self, tier: str, key: str | None) -> TiersView:
        """The same with one tier, or one key of it.

        Raises:
            NotFound: nobody uses that key.
        """
        [view] = [each for each in self.tiers if each.spec.name == tier]
        if key is not None:
            keys = tuple(each for each in view.keys if each.key == key)
            if not keys:
                near = similar(key, [each.key or "" for each in view.keys])
                raise NotFound(
                    f"nobody uses the key {key!r} of {tier!r} of {self.found.name!r}{near}"
                )
            view = replace(view, keys=keys)
        return replace(self, tiers=(view,))


def view(found: FoundTiers) -> TiersView:
    """Take the snapshot; the server reads thousands of keys at a time."""
    stats = found.stats
    if stats is None:
        stats = found.paths.stats_sync() if found.specs else {}
    return TiersView(found, tuple(_tier(spec, stats[spec.name]) for spec in found.specs))


def _tier(spec: TierSpec, stats: TierStats) -> TierView:
    keys = [_counts(key, each) for key, each in stats.keys.items()]
    keys.sort(key=lambda each: (*each.busyness(), each.key))
    return TierView(spec, _counts(None, stats), tuple(keys))


def _counts(key: str | None, stats: TierStats | KeyStats) -> TierCounts:
    return TierCounts(
        *(key, stats.value, stats.active, stats.waiting, stats.rate),
        *(stats.level, stats.full_in, stats.paused_for, stats.frozen),
    )


@dataclass(frozen=True, slots=True)
class Shortage:
    """A tier that waiters lack, or one key of it."""

    spec: TierSpec
    counts: TierCounts
    waiters: Sequence[Claimant]

    @property
    def need(self) -> int:
        """What the first of them needs."""
        return self.waiters[0].needs.get(self.spec.name, 1)

    @property
    def next_grant(self) -> float | None:
        """In how many seconds there is enough for the first; None if that is up to holders."""
        counts = self.counts
        if counts.level is None or counts.full_in is None:
            return None
        missing = max(self.need - counts.level, 0.0)
        # A key may have a rate of its own, so how fast it fills is taken from when it is full.
        seconds = missing * counts.full_in / (counts.taken or 1.0)
        return max(seconds, counts.paused_for)

    def __str__(self) -> str:
        counts = self.counts
        if counts.level is None:
            amount = f"{counts.held:,} of {counts.value:,} held"
        elif counts.level >= 0:
            amount = f"{floor(counts.level):,} left of {counts.value:,}"
        else:
            amount = f"{ceil(-counts.level):,} in debt, with a burst of {counts.value:,}"
        node = self.spec.name if counts.key is None else f"{self.spec.name}={counts.key}"
        return f"{node}: {amount}" + (f", {self.need:,} needed" if self.need > 1 else "")


def shortages(tiers: TiersView, waiters: Sequence[Claimant]) -> list[Shortage]:
    """Return what waiters lack, first what most of them do: that is the bottleneck."""
    lines: dict[tuple[str | None, str | None], list[Claimant]] = {}
    for each in waiters:
        lines.setdefault((each.lacks, each.keys.get(each.lacks or "")), []).append(each)
    found = [
        Shortage(tier.spec, counts, line)
        for tier in tiers.tiers
        for counts in tier.keys or (tier.total,)
        if (line := lines.get((tier.spec.name, counts.key)))
    ]
    return sorted(found, key=lambda each: -len(each.waiters))


def through(claimants: Sequence[Claimant], tier: str, key: str | None) -> list[Claimant]:
    """Those whose path goes through a tier, or one key of it; each goes through every tier."""
    return [each for each in claimants if key is None or each.keys.get(tier) == key]
