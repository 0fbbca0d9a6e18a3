"""Metrics and span events for OpenTelemetry, read back by its own SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider

from slotwise import MemorySemaphore, Rate, RateLimit, Tier, Tiers, limited
from slotwise._core import events
from slotwise.instrumentation._metrics import BOUNDS
from slotwise.instrumentation.opentelemetry import instrument, uninstrument


class Meters:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def read(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def meters() -> Iterator[Meters]:
    meters = Meters()
    yield meters
    uninstrument()
    meters.provider.shutdown()


async def test_every_attempt_and_every_grant_is_measured_once(meters: Meters) -> None:
    instrument(meter_provider=meters.provider)
    semaphore = MemorySemaphore(2, name="api")
    async with semaphore.cm(), semaphore.cm():
        assert await semaphore.try_acquire() is None
        during = meters.read()
    after = meters.read()
    name = {"slotwise.name": "api", "slotwise.scope": "memory"}
    for metric, value in (("limit", 2), ("held", 2), ("waiting", 0)):
        [point] = during[f"slotwise.{metric}"]
        assert (dict(point.attributes), point.value) == (name, value)
    assert after["slotwise.held"][0].value == 0
    outcomes = {
        point.attributes["slotwise.outcome"]: point.value
        for point in after["slotwise.acquisitions"]
    }
    assert outcomes == {"acquired": 2, "full": 1}
    [ended] = after["slotwise.endings"]
    assert (dict(ended.attributes), ended.value) == ({**name, "slotwise.ending": "released"}, 2)
    for metric in ("wait", "hold"):
        [point] = after[f"slotwise.{metric}.duration"]
        assert point.count == 2
        assert tuple(point.explicit_bounds) == BOUNDS
    assert (BOUNDS[0], BOUNDS[-1]) == (0.001, 600)


async def test_a_rate_has_metrics_of_its_own_and_no_slots(meters: Meters) -> None:
    instrument(meter_provider=meters.provider)
    rate = RateLimit("metered", Rate(6, per=3600, burst=90))
    await rate.acquire(cost=60)
    read = meters.read()

    def of(name: str) -> list[float]:
        points = read.get(f"slotwise.{name}", [])
        return [each.value for each in points if each.attributes["slotwise.name"] == "metered"]

    assert (of("limit"), of("held")) == ([], [])
    assert (of("rate.limit"), of("rate.burst")) == ([6 / 3600], [90])
    [level] = of("rate.level")
    assert 30 <= level < 31


async def test_a_key_is_an_attribute_only_if_it_is_named(meters: Meters) -> None:
    tiers = Tiers(
        Tier("tenant", 2, keyed=True), Tier("user", 3, keyed=True), Tier("all", 5), name="t"
    )
    instrument(meter_provider=meters.provider, keys=["tenant"])
    async with tiers.at(tenant="acme", user="eve").cm():
        pass
    seen = meters.read()
    shown = [dict(point.attributes) for points in seen.values() for point in points]
    assert "eve" not in str(shown)
    assert seen["slotwise.endings"][0].attributes["slotwise.key.tenant"] == "acme"
    with pytest.raises(TypeError):
        instrument(keys="tenant")


async def test_limits_of_a_template_report_under_the_template(meters: Meters) -> None:
    @limited("crm:{tenant}", 5)
    async def call(tenant: str) -> None: ...

    instrument(meter_provider=meters.provider)
    for tenant in ("acme", "emca"):
        await call(tenant)
    [point] = meters.read()["slotwise.acquisitions"]
    assert (point.attributes["slotwise.name"], point.value) == ("crm:{tenant}", 2)


async def test_instrumenting_again_measures_once_and_uninstrumenting_ends_it(
    meters: Meters,
) -> None:
    for _ in range(3):
        instrument(meter_provider=meters.provider)
    async with MemorySemaphore(1, name="again"):
        pass
    assert meters.read()["slotwise.acquisitions"][0].value == 1
    uninstrument()
    uninstrument()
    assert events.hooks == ()
    async with MemorySemaphore(1, name="again"):
        pass
    assert "slotwise.held" not in meters.read()


async def test_the_span_that_acquires_has_an_event(meters: Meters) -> None:
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = tracers.get_tracer("test")
    semaphore = MemorySemaphore(1, name="traced")
    instrument(meter_provider=meters.provider, tracer_provider=tracers)
    with tracer.start_as_current_span("work"):
        async with semaphore:
            pass
    instrument(meter_provider=meters.provider, tracer_provider=NoOpTracerProvider())
    with tracer.start_as_current_span("untold"):
        async with semaphore:
            pass
    told, untold = exporter.get_finished_spans()
    [event] = told.events
    assert event.name == "slotwise.acquired"
    assert event.attributes["slotwise.name"] == "traced"
    assert event.attributes["slotwise.waited"] >= 0
    assert not untold.events
