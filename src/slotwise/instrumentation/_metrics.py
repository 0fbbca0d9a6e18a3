"""What all metrics have in common: bounds, outcomes, names, what is held and waited for."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from math import ceil, log

from slotwise._core import events, fork, stats
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


# Names come and go: at most this many are kept, those used last.
_MOST_COUNTED = 10_000

_SHORTEST = 1e-6  # seconds: all that is shorter is counted as that
_GROWTH = 1.1
_LOG_GROWTH = log(_GROWTH)


class Distribution:
    """Times, in buckets: how many, their mean, and any percentile of them."""

    __slots__ = ("_buckets", "_count", "_sum")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._count = 0
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._count += 1
        self._sum += seconds
        self._buckets[ceil(log(max(seconds, _SHORTEST) / _SHORTEST) / _LOG_GROWTH)] += 1

    @property
    def mean(self) -> float | None:
        return self._sum / self._count if self._count else None

    def percentile(self, share: float) -> float | None:
        """The time that ``share`` of all are not longer than; None if there are none."""
        left = share * self._count
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return float(_SHORTEST * _GROWTH ** (bucket - 0.5))
        return None


class _Counts:
    """What was counted for one limit."""

    __slots__ = ("granted", "hold", "lost", "refused", "wait")

    def __init__(self) -> None:
        self.granted = self.lost = 0
        self.refused: Counter[str] = Counter()
        self.wait = Distribution()
        self.hold = Distribution()

    def add(self, event: Event) -> None:
        if event.kind == "acquired":
            self.granted += 1
            self.wait.add(event.waited or 0.0)
        elif event.kind == "refused":
            self.refused[str(event.reason)] += 1
        elif event.kind in events.ENDINGS:
            self.lost += event.kind != "released"
            self.hold.add(event.held or 0.0)

    def totals(self) -> stats.Totals:
        return stats.Totals(
            self.granted,
            dict(self.refused),
            self.lost,
            self.wait.mean,
            self.wait.percentile(0.95),
            self.hold.mean,
            self.hold.percentile(0.95),
        )


_Key = tuple[str, str]  # scope and name

_lock = fork.new_lock()
_counts: OrderedDict[_Key, _Counts] = OrderedDict()


def keep_totals() -> None:
    """Count what this process gets of its limits from now on: ``SemaphoreStats.totals`` has it.

    Limits without a name are not counted. Calling it again changes nothing.
    """
    stats.totals_of = _totals_of
    events.add_hook(_count)


def drop_totals() -> None:
    """Stop counting, and forget what was counted."""
    stats.totals_of = None
    events.remove_hook(_count)
    with _lock:
        _counts.clear()


def _count(event: Event) -> None:
    if event.name is None or event.kind in ("requested", "resized", "adapted"):
        return
    key = event.scope, event.name
    with _lock:
        counts = _counts.get(key)
        if counts is None:
            counts = _counts[key] = _Counts()
            if len(_counts) > _MOST_COUNTED:
                _counts.popitem(last=False)
        else:
            _counts.move_to_end(key)
        counts.add(event)


def _totals_of(scope: str, name: str | None) -> stats.Totals | None:
    """What was counted for a limit; None for one without a name."""
    if name is None:
        return None
    with _lock:
        return _counts.get((scope, name), _NOTHING).totals()


_NOTHING = _Counts()


fork.in_child(fork.Step.FORGET, _counts.clear)
