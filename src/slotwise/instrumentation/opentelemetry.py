"""OpenTelemetry: metrics of this process, and an event on the span that acquires.

    from slotwise.instrumentation.opentelemetry import instrument

    instrument()

The metrics are ``slotwise.limit``, ``slotwise.held`` and ``slotwise.waiting`` (slots;
the latter two are this process's own), ``slotwise.rate.limit``, ``slotwise.rate.burst`` and
``slotwise.rate.level`` (of rates, the level only in memory), ``slotwise.paused`` and
``slotwise.frozen`` (0 or 1, by this process), ``slotwise.wait.duration`` and
``slotwise.hold.duration`` (seconds), ``slotwise.acquisitions`` (each attempt once) and
``slotwise.endings`` (each grant once).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from slotwise._core import events, fork
from slotwise._core.event import Event
from slotwise.instrumentation._metrics import BOUNDS, Gauges, Labels, SeriesNames, outcome

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import NoOpTracerProvider, TracerProvider
except ImportError as error:
    raise ImportError("opentelemetry is missing: pip install 'slotwise[opentelemetry]'") from error

__all__ = ["instrument", "uninstrument"]

Attributes = Mapping[str, str]
_Read = Callable[[Gauges], Mapping[Labels, float]]
_Series = tuple[str, ...]  # name, scope, tier, and the keys that are attributes


def instrument(
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    keys: Collection[str] = (),
) -> None:
    """Measure what this process gets of its limits from now on.

    The attributes are ``slotwise.name``, ``slotwise.scope`` and ``slotwise.tier``. A second call
    replaces the first.

    Args:
        meter_provider: by default the global one.
        tracer_provider: only looked at to see whether there are spans: a NoOpTracerProvider
            means that nothing is added to the current span.
        keys: the tiers whose keys are attributes too, ``slotwise.key.TIER``; there should be few
            different ones.
    """
    global _current
    if isinstance(keys, str):
        raise TypeError("keys must be an iterable of names, not a str")
    uninstrument()
    provider = meter_provider or metrics.get_meter_provider()
    if provider not in _instruments:
        _instruments[provider] = _Instruments(provider.get_meter("slotwise"))
    traced = not isinstance(tracer_provider, NoOpTracerProvider)
    _current = _Measuring(_instruments[provider], tuple(keys), traced=traced)
    _current.instruments.measuring = _current
    events.add_hook(_current.on_event)


def uninstrument() -> None:
    """Undo `instrument`; if there is nothing to undo, nothing happens."""
    global _current
    if _current is not None:
        events.remove_hook(_current.on_event)
        _current.instruments.measuring = None
        _current = None


class _Instruments:
    """The instruments of one provider: made once, since a provider can't remove them."""

    def __init__(self, meter: Meter) -> None:
        self.measuring: _Measuring | None = None  # None while nothing is measured
        gauge, up_down = meter.create_observable_gauge, meter.create_observable_up_down_counter
        for create, name, unit, what, read in (
            (gauge, "limit", "{slot}", "How many slots the limit has", Gauges.values),
            (
                up_down,
                "held",
                "{slot}",
                "Slots that this process holds",
                lambda gauges: gauges.held_and_waiting()[0],
            ),
            (
                up_down,
                "waiting",
                "{slot}",
                "Slots that this process waits for",
                lambda gauges: gauges.held_and_waiting()[1],
            ),
            (
                gauge,
                "rate.limit",
                "{unit}/s",
                "What comes back of a rate in a second, of each key",
                lambda gauges: gauges.rates()[0],
            ),
            (
                gauge,
                "rate.burst",
                "{unit}",
                "The most of a rate that is saved up, of each key",
                lambda gauges: gauges.rates()[1],
            ),
            (
                gauge,
                "rate.level",
                "{unit}",
                "What is left of a rate in memory, of the least key",
                lambda gauges: gauges.rates()[2],
            ),
            (
                gauge,
                "paused",
                "1",
                "1 while a pause lasts that this process has made",
                Gauges.paused,
            ),
            (
                gauge,
                "frozen",
                "1",
                "1 if this process keeps an adaptive value where it is",
                Gauges.frozen,
            ),
        ):
            create(f"slotwise.{name}", [self._observer(read)], unit, what)
        bounds: dict[str, Any] = {"explicit_bucket_boundaries_advisory": BOUNDS}
        self.wait = meter.create_histogram(
            "slotwise.wait.duration", "s", "From the request to the grant", **bounds
        )
        self.hold = meter.create_histogram(
            "slotwise.hold.duration", "s", "From the grant to its end", **bounds
        )
        # Observed, so that an acquisition costs two calls of OpenTelemetry and not four.
        meter.create_observable_counter(
            "slotwise.acquisitions",
            [self._observe_acquisitions],
            "{acquisition}",
            "Attempts, by their outcome, each once",
        )
        meter.create_observable_counter(
            "slotwise.endings",
            [self._observe_endings],
            "{acquisition}",
            "Grants that have ended, each once",
        )

    def _observer(self, read: _Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            found = {} if self.measuring is None else read(self.measuring.gauges)
            return [Observation(value, _attributes(labels)) for labels, value in found.items()]

        return observe

    def _observe_acquisitions(self, _: CallbackOptions) -> Iterable[Observation]:
        measuring = self.measuring
        if measuring is None:
            return []
        return measuring.observations(measuring.acquisitions, "slotwise.outcome")

    def _observe_endings(self, _: CallbackOptions) -> Iterable[Observation]:
        measuring = self.measuring
        if measuring is None:
            return []
        return measuring.observations(measuring.endings, "slotwise.ending")


class _Measuring:
    """From one `instrument` to the next `uninstrument`."""

    def __init__(self, instruments: _Instruments, keys: tuple[str, ...], *, traced: bool) -> None:
        self.instruments = instruments
        self._keys = keys
        self._traced = traced
        self._names = SeriesNames()
        self.gauges = Gauges(self._names)
        self._lock = fork.new_lock()
        self.acquisitions: Counter[tuple[_Series, str]] = Counter()  # by their outcomes
        self.endings: Counter[tuple[_Series, str]] = Counter()  # by how they ended
        self._known: dict[_Series, Attributes] = {}  # made once for each

    def on_event(self, event: Event) -> None:
        kind = event.kind
        if kind == "acquired" or kind == "refused":
            series = self._series(event)
            with self._lock:
                self.acquisitions[series, outcome(event)] += 1
            if kind == "acquired":
                self.instruments.wait.record(event.waited or 0.0, self._attributes(series))
                if self._traced:
                    _add_to_span(event)
        elif kind in events.ENDINGS:
            series = self._series(event)
            with self._lock:
                self.endings[series, kind] += 1
            self.instruments.hold.record(event.held or 0.0, self._attributes(series))
        else:
            self.gauges.note(event)

    def observations(
        self, counts: Counter[tuple[_Series, str]], attribute: str
    ) -> list[Observation]:
        with self._lock:
            found = list(counts.items())
        return [
            Observation(count, {**self._attributes(series), attribute: which})
            for (series, which), count in found
        ]

    def _series(self, event: Event) -> _Series:
        labels = self._names.labels(event)
        if not self._keys:
            return labels
        return (*labels, *[event.keys.get(each, "") for each in self._keys])

    def _attributes(self, series: _Series) -> Attributes:
        attributes = self._known.get(series)
        if attributes is None:
            name, scope, tier, *keys = series
            shown = {
                f"slotwise.key.{tier}": key for tier, key in zip(self._keys, keys, strict=True)
            }
            attributes = {**_attributes((name, scope, tier)), **shown}
            self._known[series] = attributes
        return attributes


def _attributes(labels: Labels) -> Attributes:
    name, scope, tier = labels
    attributes = {"slotwise.name": name, "slotwise.scope": scope}
    return {**attributes, "slotwise.tier": tier} if tier else attributes


def _add_to_span(event: Event) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        attributes: dict[str, str | float] = {
            "slotwise.name": event.name or "",
            "slotwise.waited": event.waited or 0.0,
        }
        if event.fencing_token is not None:
            attributes["slotwise.fencing_token"] = event.fencing_token
        span.add_event("slotwise.acquired", attributes)


_instruments: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_current: _Measuring | None = None
