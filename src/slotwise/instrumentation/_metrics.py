"""What all metrics have in common: bounds, outcomes, and what is held and waited for now."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from slotwise._core import events
from slotwise._core.event import Event
from slotwise._core.events import ReportedAcquisition
from slotwise._core.rates import Rate

# Of histograms, in seconds: from 1 ms to 600 s.
BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)

# Names come and go: at most this many have series of their own, and all others share one.
_MOST_NAMES = 1000
_OTHERS = "(others)"

# Name, scope and tier; the latter two are bounded in number.
Labels = tuple[str, str, str]


class SeriesNames:
    """Which names have series of their own: the first ones."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def labels(self, of: Event | ReportedAcquisition, tier: str | None = None) -> Labels:
        name = of.name or ""
        if name not in self._known:
            if len(self._known) >= _MOST_NAMES:
                name = _OTHERS
            else:
                self._known.add(name)
        return name, of.scope, tier or ""


def outcome(event: Event) -> str:
    """How an attempt ended: acquired, or the reason of the refusal."""
    return "acquired" if event.kind == "acquired" else str(event.reason)


class Gauges:
    """The values of the limits that this process uses, and what it holds and waits for itself."""

    def __init__(self, names: SeriesNames) -> None:
        self._names = names
        self._values: dict[Labels, int] = {}
        self._paused_until: dict[Labels, float] = {}
        # With the keys of a tier that are frozen; none is the whole tier.
        self._frozen: dict[Labels, set[tuple[str, ...]]] = {}

    def note(self, event: Event) -> None:
        if event.kind == "paused":
            labels = self._names.labels(event, event.tier)
            until = time.monotonic() + (event.seconds or 0.0)
            self._paused_until[labels] = max(until, self._paused_until.get(labels, until))
        elif event.kind == "reopened":
            name, scope, _ = self._names.labels(event)
            for labels in list(self._paused_until):
                if labels[:2] == (name, scope):
                    self._paused_until[labels] = 0.0
        elif event.kind == "frozen":
            labels = self._names.labels(event, event.tier)
            self._frozen.setdefault(labels, set()).add((*event.keys.values(),))
        elif event.kind == "thawed":
            labels, keys = self._names.labels(event, event.tier), event.keys
            frozen = self._frozen.get(labels, set())
            frozen.discard((*keys.values(),)) if keys else frozen.clear()
        elif event.kind == "requested":
            for tier, value in event.values.items():
                self._values[self._names.labels(event, tier)] = value
        elif event.value is not None and not event.keys:
            labels = self._names.labels(event, event.tier)
            if event.tier is None or labels in self._values:  # not a rate, which has no slots
                self._values[labels] = event.value

    def values(self) -> Mapping[Labels, int]:
        """By limit; 0 means unlimited, or a value that differs from key to key."""
        return dict(self._values)

    def rates(self) -> tuple[Mapping[Labels, float], ...]:
        """What comes back in a second, the burst, and what is left, by limit.

        The last is that of the least of all keys, and only of rates in memory: `slotwise export`
        has the others, without a scrape that waits for a server.
        """
        per_second: dict[Labels, float] = {}
        bursts: dict[Labels, float] = {}
        levels: dict[Labels, float] = {}
        for (name, scope), found in list(events.rated.items()):
            backend = found()
            if backend is None:
                continue
            stats = backend.stats_sync() if scope == "memory" else {}
            for spec in backend._specs:
                rate, own = spec.value, stats.get(spec.name)
                if not isinstance(rate, Rate):
                    continue
                labels = self._names.labels(Event("requested", name, scope), spec.name)
                if own is not None:
                    rate = own.rate or rate
                    left = [own.level, *(each.level for each in own.keys.values())]
                    levels[labels] = min(
                        (each for each in left if each is not None), default=rate.burst
                    )
                per_second[labels], bursts[labels] = rate.count / rate.per, rate.burst
        return per_second, bursts, levels

    def paused(self) -> Mapping[Labels, int]:
        """1 by limit while a pause lasts that this process has made, else 0."""
        now = time.monotonic()
        lasting = {labels for labels, until in list(self._paused_until.items()) if until > now}
        return self._all_with(lasting)

    def frozen(self) -> Mapping[Labels, int]:
        """1 by limit if this process has frozen it, or a key of it, else 0."""
        return self._all_with({labels for labels, keys in list(self._frozen.items()) if keys})

    def _all_with(self, chosen: set[Labels]) -> Mapping[Labels, int]:
        return {
            labels: int(labels in chosen)
            for labels in [*dict.fromkeys([*self._values, *self._paused_until, *self._frozen])]
        }

    def held_and_waiting(self) -> tuple[Mapping[Labels, int], Mapping[Labels, int]]:
        """Slots, by limit; 0 where there is none now."""
        held: Counter[Labels] = Counter(dict.fromkeys(list(self._values), 0))
        waiting: Counter[Labels] = Counter(dict.fromkeys(list(self._values), 0))
        for record in events.live():
            into = waiting if record.granted is None else held
            for tier in record.values:
                slots = record.needs.get(tier, 1) if tier else record.slots
                into[self._names.labels(record, tier)] += slots
        return held, waiting
