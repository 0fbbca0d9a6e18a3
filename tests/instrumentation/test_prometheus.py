"""The collector for prometheus_client, scraped over HTTP as a Prometheus server does."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from slotwise import MemorySemaphore, Rate, Tier, Tiers
from slotwise.instrumentation import _metrics
from slotwise.instrumentation.prometheus import Collector


@pytest.fixture
def scrape() -> Iterator[object]:
    registry = CollectorRegistry()
    collector = Collector()
    registry.register(collector)
    server, thread = start_http_server(0, "127.0.0.1", registry)

    def scrape() -> dict[str, float]:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as reply:
            text = reply.read().decode()
        return {
            " ".join([sample.name, *_in_order(sample.labels)]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    yield scrape
    server.shutdown()
    server.server_close()
    thread.join()
    collector.close()


def _in_order(labels: dict[str, str]) -> list[str]:
    more = [labels[each] for each in ("outcome", "ending", "le") if each in labels]
    return [labels["name"], labels["scope"], labels["tier"], *more]


async def test_a_scrape_shows_what_this_process_got(scrape) -> None:
    semaphore = MemorySemaphore(3, name="api")
    async with semaphore, semaphore.cm(2):
        assert await semaphore.try_acquire() is None
        seen = scrape()
    assert seen["slotwise_limit api memory "] == 3
    assert seen["slotwise_held api memory "] == 3
    assert seen["slotwise_waiting api memory "] == 0
    assert seen["slotwise_acquisitions_total api memory  acquired"] == 2
    assert seen["slotwise_acquisitions_total api memory  full"] == 1
    seen = scrape()
    assert seen["slotwise_held api memory "] == 0
    assert seen["slotwise_endings_total api memory  released"] == 2
    assert seen["slotwise_hold_duration_seconds_count api memory "] == 2
    assert seen["slotwise_wait_duration_seconds_bucket api memory  600.0"] == 2
    assert seen["slotwise_wait_duration_seconds_sum api memory "] >= 0


async def test_a_rate_has_families_of_its_own_and_no_slots(scrape) -> None:
    rate = Tier("tokens", rate=Rate(10, per=3600, burst=100))
    keyed = Tier("user", rate=Rate(1, per=3600, burst=9), keyed=True)
    tiers = Tiers(keyed, rate, Tier("all", 5), name="rated")
    async with tiers.cm(user="ann", costs={"tokens": 60, "user": 5}) as acquired:
        await tiers.settle(acquired, user=11)
        await tiers.resize("tokens", Rate(20, per=5, burst=90))
        seen = scrape()
    assert seen["slotwise_limit rated memory all"] == 5
    for tier in ("tokens", "user"):
        assert f"slotwise_limit rated memory {tier}" not in seen
        assert f"slotwise_held rated memory {tier}" not in seen
    assert seen["slotwise_rate_limit rated memory tokens"] == 4
    assert seen["slotwise_rate_burst rated memory tokens"] == 90
    assert 40 <= seen["slotwise_rate_level rated memory tokens"] <= 90
    assert seen["slotwise_rate_burst rated memory user"] == 9
    assert -2 <= seen["slotwise_rate_level rated memory user"] < -1  # in debt


async def test_keys_are_never_labels_and_every_tier_has_its_own_gauges(scrape) -> None:
    tiers = Tiers(Tier("tenant", 2, keyed=True), Tier("all", 5), name="tiers")
    async with tiers.at(tenant="acme").cm(), tiers.at(tenant="emca").cm(2):
        seen = scrape()
    assert seen["slotwise_held tiers memory tenant"] == 3
    assert seen["slotwise_limit tiers memory tenant"] == 2
    assert seen["slotwise_held tiers memory all"] == 3
    assert not [sample for sample in seen if "acme" in sample]


async def test_names_that_come_and_go_share_a_series(
    scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_metrics, "_MOST_NAMES", 20)
    for number in range(30):
        async with MemorySemaphore(1, name=f"n{number}"):
            pass
    seen = scrape()
    assert seen["slotwise_acquisitions_total (others) memory  acquired"] == 10
    assert sum("slotwise_limit" in sample for sample in seen) == 21
