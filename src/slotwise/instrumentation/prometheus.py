"""Collector: the metrics of this process for prometheus_client.

    from prometheus_client import REGISTRY
    from slotwise.instrumentation.prometheus import Collector

    REGISTRY.register(Collector())

What many processes hold in total, seen from outside, is exported by ``slotwise export``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from slotwise._core import events, fork
from slotwise._core.event import Event
from slotwise.instrumentation._metrics import BOUNDS, Gauges, Labels, SeriesNames, outcome

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
except ImportError as error:
    raise ImportError("prometheus_client is missing: pip install 'slotwise[prometheus]'") from error

__all__ = ["Collector"]

_LABELS = ("name", "scope", "tier")

_Histograms: TypeAlias = "dict[Labels, _Histogram]"


class Collector:
    """Counts from now on what this process gets of its limits; ``close()`` ends that.

    The labels are ``name``, ``scope`` and ``tier``, never a key.
    """

    def __init__(self) -> None:
        self._names = SeriesNames()
        self._gauges = Gauges(self._names)
        self._lock = fork.new_lock()
        self._acquisitions: Counter[tuple[Labels, str]] = Counter()
        self._endings: Counter[tuple[Labels, str]] = Counter()
        self._waits: _Histograms = {}
        self._holds: _Histograms = {}
        events.add_hook(self._count)

    def close(self) -> None:
        """Stop counting."""
        events.remove_hook(self._count)

    def _count(self, event: Event) -> None:
        with self._lock:
            if event.kind in ("acquired", "refused"):
                labels = self._names.labels(event)
                self._acquisitions[labels, outcome(event)] += 1
                if event.kind == "acquired":
                    self._observe(self._waits, labels, event.waited)
            elif event.kind in events.ENDINGS:
                labels = self._names.labels(event)
                self._endings[labels, event.kind] += 1
                self._observe(self._holds, labels, event.held)
            else:
                self._gauges.note(event)

    def _observe(self, histograms: _Histograms, labels: Labels, seconds: float | None) -> None:
        if labels not in histograms:
            histograms[labels] = _Histogram()
        histograms[labels].add(seconds or 0.0)

    def collect(self) -> Iterator[Metric]:
        held, waiting = self._gauges.held_and_waiting()
        per_second, bursts, levels = self._gauges.rates()
        for name, what, values in (
            ("limit", "How many slots the limit has; 0 means unlimited", self._gauges.values()),
            ("held", "Slots that this process holds", held),
            ("waiting", "Slots that this process waits for", waiting),
            ("rate_limit", "What comes back of a rate in a second, of each key", per_second),
            ("rate_burst", "The most of a rate that is saved up, of each key", bursts),
            ("rate_level", "What is left of a rate in memory, of the least key", levels),
            ("paused", "1 while a pause lasts that this process has made", self._gauges.paused()),
            ("frozen", "1 if this process keeps an adaptive value", self._gauges.frozen()),
        ):
            gauge = GaugeMetricFamily(f"slotwise_{name}", what, labels=_LABELS)
            for labels, number in values.items():
                gauge.add_metric(labels, number)
            yield gauge
        with self._lock:
            waits = {labels: each.buckets() for labels, each in self._waits.items()}
            holds = {labels: each.buckets() for labels, each in self._holds.items()}
            acquisitions, endings = dict(self._acquisitions), dict(self._endings)
        for name, what, found in (
            ("wait", "From the request to the grant", waits),
            ("hold", "From the grant to its end", holds),
        ):
            full_name = f"slotwise_{name}_duration_seconds"
            family = HistogramMetricFamily(full_name, what, labels=_LABELS)
            for labels, (buckets, total) in found.items():
                family.add_metric(labels, buckets, total)
            yield family
        for name, what, label, counts in (
            ("acquisitions", "Attempts, each once", "outcome", acquisitions),
            ("endings", "Grants that have ended, each once", "ending", endings),
        ):
            counter = CounterMetricFamily(f"slotwise_{name}", what, labels=(*_LABELS, label))
            for (labels, which), count in counts.items():
                counter.add_metric((*labels, which), count)
            yield counter


class _Histogram:
    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """How many are not longer than each bound, and the sum of all."""
        found, total = [], 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found, self._sum
