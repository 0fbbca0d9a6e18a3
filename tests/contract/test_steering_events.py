"""Pauses and frozen values that this process makes are events and metrics, on every driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from slotwise import Adaptive, Rate, RateLimit, Tier, Tiers, semaphore
from slotwise.instrumentation import Event
from slotwise.instrumentation.prometheus import Collector

ADAPTIVE = Adaptive(5, 1, 9, pause_on_retry_after=True)

Read = Callable[[str, str], float | None]


@pytest.fixture(params=["memory", "process", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "process":
        return f"process://{request.getfixturevalue('tmp_path')}/slots"
    return request.getfixturevalue("server").url if request.param == "redis" else "memory://"


@pytest.fixture
def scope(url: str) -> str:
    return url.partition(":")[0]


@pytest.fixture
def metric(name: str, scope: str) -> Iterator[Read]:
    """The value of a metric of the name at hand, by its tier."""
    registry, collector = CollectorRegistry(), Collector()
    registry.register(collector)

    def read(family: str, tier: str = "") -> float | None:
        labels = {"name": name, "scope": scope, "tier": tier}
        return registry.get_sample_value(f"slotwise_{family}", labels)

    yield read
    collector.close()


def steered(heard: list[Event]) -> list[tuple[Any, ...]]:
    kinds = ("paused", "reopened", "frozen", "thawed")
    found = [event for event in heard if event.kind in kinds]
    return [(e.kind, e.name, e.scope, e.tier, dict(e.keys), e.seconds) for e in found]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_paused_and_a_frozen_semaphore(
    url: str, name: str, scope: str, heard: list[Event], metric: Read, sync: bool
) -> None:
    limit = semaphore(name, ADAPTIVE, url=url)

    async def say(verb: str, *args: Any) -> None:
        if sync and scope != "redis":  # whose twin would block the loop
            getattr(limit, f"{verb}_sync")(*args)
        else:
            await getattr(limit, verb)(*args)

    async with limit.cm():
        assert metric("paused", "") == metric("frozen", "") == 0
    await say("pause", 60)
    assert (metric("paused", ""), metric("frozen", "")) == (1, 0)
    await say("reopen")
    assert metric("paused", "") == 0
    await say("freeze")
    assert metric("frozen", "") == 1
    await say("thaw")
    assert metric("frozen", "") == 0
    assert steered(heard) == [
        ("paused", name, scope, None, {}, 60),
        ("reopened", name, scope, None, {}, None),
        ("frozen", name, scope, None, {}, None),
        ("thawed", name, scope, None, {}, None),
    ]


async def test_a_pause_that_the_service_asks_for(
    url: str, name: str, scope: str, heard: list[Event], metric: Read
) -> None:
    limit = semaphore(name, ADAPTIVE, url=url)
    async with limit.cm() as acquired:
        acquired.dropped(retry_after=30)
    assert steered(heard) == [("paused", name, scope, None, {}, 30)]
    assert metric("paused", "") == 1
    await limit.reopen()
    assert metric("paused", "") == 0


async def test_a_pause_ends_by_itself(url: str, name: str, metric: Read) -> None:
    limit = semaphore(name, 1, url=url)
    await limit.pause(0.001)
    async with limit.cm(), asyncio.timeout(30):  # once it is over
        while metric("paused", ""):  # which is measured from a moment later
            await asyncio.sleep(0.001)


async def test_tiers_that_are_paused_and_frozen(
    url: str, name: str, scope: str, heard: list[Event], metric: Read
) -> None:
    tiers = Tiers(Tier("host", ADAPTIVE, keyed=True), Tier("all", 9), name=name, url=url)
    async with tiers.cm(host="a") as acquired:
        acquired.dropped(retry_after=30)
    assert (metric("paused", "host"), metric("paused", "all")) == (1, 0)
    await tiers.reopen()
    await tiers.at(host="b").pause(5)
    await tiers.pause(7)
    assert (metric("paused", "host"), metric("paused", "all")) == (1, 1)
    await tiers.freeze("host", key="a")
    await tiers.freeze("host")
    await tiers.thaw("host", key="a")
    assert (metric("frozen", "host"), metric("frozen", "all")) == (1, 0)
    await tiers.thaw("host")
    assert metric("frozen", "host") == 0
    assert steered(heard) == [
        ("paused", name, scope, "host", {"host": "a"}, 30),
        ("reopened", name, scope, None, {}, None),
        ("paused", name, scope, "host", {"host": "b"}, 5),
        ("paused", name, scope, "all", {}, 7),
        ("frozen", name, scope, "host", {"host": "a"}, None),
        ("frozen", name, scope, "host", {}, None),
        ("thawed", name, scope, "host", {"host": "a"}, None),
        ("thawed", name, scope, "host", {}, None),
    ]
    await tiers.close()


async def test_a_paused_rate(url: str, name: str, scope: str, metric: Read) -> None:
    rate = RateLimit(name, Rate(10, per=1), url=url)
    await rate.acquire()
    await rate.pause(60)
    assert metric("paused", "cost") == 1
    await rate.reopen()
    assert metric("paused", "cost") == 0
    await rate.close()
