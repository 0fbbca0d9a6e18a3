"""What hooks are told, on every driver: each thing once, so that the sums hold."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from slotwise import (
    AcquisitionResult,
    Adaptive,
    Limit,
    MemorySemaphore,
    Rate,
    RateLimit,
    SlotwiseError,
    Tier,
    Tiers,
    semaphore,
)
from slotwise._core import events
from slotwise.instrumentation import Event, add_hook, remove_hook
from slotwise.instrumentation.prometheus import Collector
from tests.contract.conftest import Speak, Url

Make = Callable[..., Any]
ENDINGS = ("released", "expired", "lost", "kicked")


class Ear:
    """A hook that remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def check_sums(self, held: int = 0) -> Counter[str]:
        count = Counter(self.kinds)
        assert count["requested"] == count["acquired"] + count["refused"]
        assert count["acquired"] == sum(count[kind] for kind in ENDINGS) + held
        return count

    async def hears(self, kind: str) -> Event:
        """The first event of that kind, as soon as it has come."""
        async with asyncio.timeout(30):
            while kind not in self.kinds:
                await asyncio.sleep(0.001)
        return next(event for event in self.events if event.kind == kind)


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    add_hook(ear)
    yield ear
    remove_hook(ear)


async def test_nothing_of_a_rate_is_held_or_released(url: Url, name: str, ear: Ear) -> None:
    rate = RateLimit(name, Rate(1, per=100, burst=10), url=url)
    await rate.release(await rate.acquire())
    async with rate.cm(cost=2):
        pass
    await asyncio.to_thread(rate.acquire_sync)
    assert ear.kinds == ["requested", "acquired"] * 3
    assert events.live() == []


async def test_an_acquisition_is_told_from_its_request_to_its_release(
    make_limit: Make, speak: Speak, ear: Ear
) -> None:
    limit: Limit = make_limit(2)
    acquired = await speak.acquire(limit)
    await speak.release(limit, acquired)
    await speak.release(limit, acquired)
    assert ear.kinds == ["requested", "acquired", "released"]
    assert {event.acquisition_id for event in ear.events} == {acquired.acquisition_id}
    assert len({(event.name, event.scope) for event in ear.events}) == 1
    asked, got, gave = ear.events
    assert asked.waited is asked.held is got.held is gave.waited is None
    assert got.waited is not None
    assert gave.held is not None
    assert min(got.waited, gave.held) >= 0
    assert got.fencing_token == acquired.fencing_token


async def test_every_kind_of_block_is_told(make_limit: Make, ear: Ear) -> None:
    limit: Limit = make_limit(2)

    def in_a_thread() -> None:
        with limit:
            pass
        with limit.cm():
            pass

    async with limit:
        pass
    async with limit.cm():
        pass
    await asyncio.to_thread(in_a_thread)
    assert ear.kinds == ["requested", "acquired", "released"] * 4


async def test_a_refusal_is_told_with_its_reason(make_limit: Make, speak: Speak, ear: Ear) -> None:
    limit: Limit = make_limit(1)
    acquired = await speak.acquire(limit)
    assert await speak.try_acquire(limit) is None
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError):
            await speak.acquire(limit, timeout=timeout)
    waiting = asyncio.ensure_future(limit.acquire())
    await speak.waiting(limit, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await speak.release(limit, acquired)
    reasons = [event.reason for event in ear.events if event.kind == "refused"]
    assert reasons == ["full", "full", "timeout", "cancelled"]
    ear.check_sums()


async def test_a_request_to_a_closed_limit_is_told_like_any_other(
    make_limit: Make, speak: Speak, ear: Ear
) -> None:
    limit = make_limit(3)
    owner = getattr(limit, "tiers", limit)
    await speak.release(limit, await speak.acquire(limit, 2))
    await speak.close(owner)
    with pytest.raises(SlotwiseError):
        await speak.acquire(limit, 2)
    first, *_ = [event for event in ear.events if event.kind == "requested"]
    *_, asked, refused = ear.events
    assert (asked.kind, refused.kind, refused.reason) == ("requested", "refused", "closed")
    for event in asked, refused:
        told = event.name, event.scope, event.slots, event.keys
        assert told == (first.name, first.scope, 2, first.keys)
        assert event.acquisition_id not in (None, first.acquisition_id)
    assert asked.acquisition_id == refused.acquisition_id
    ear.check_sums()


async def test_a_kick_and_a_resize_are_told(make: Make, speak: Speak, ear: Ear) -> None:
    semaphore = make(1)
    acquired = await speak.acquire(semaphore)
    await speak.kick(semaphore, acquired)
    kicked = await ear.hears("kicked")
    assert kicked.acquisition_id == acquired.acquisition_id
    assert not await speak.release(semaphore, acquired)
    await speak.resize(semaphore, 3)
    assert (await ear.hears("resized")).value == 3
    ear.check_sums()


async def test_the_end_of_a_ttl_is_told_once(make_limit: Make, speak: Speak, ear: Ear) -> None:
    limit: Limit = make_limit(1, ttl=0.05)
    acquired = await speak.acquire(limit)
    await asyncio.wait_for(acquired.lost, 30)
    expired = await ear.hears("expired")
    assert expired.acquisition_id == acquired.acquisition_id
    await speak.release(limit, acquired)
    ear.check_sums()


async def test_a_failing_hook_breaks_nothing_and_is_logged_once(
    make_limit: Make, speak: Speak, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(event: Event) -> None:
        raise RuntimeError("this hook is broken")

    add_hook(fails)
    try:
        limit: Limit = make_limit(1)
        for _ in range(3):
            await speak.release(limit, await speak.acquire(limit))
    finally:
        remove_hook(fails)
    assert ear.check_sums()["released"] == 3
    assert caplog.text.count("RuntimeError: this hook is broken") == 1


async def test_a_hook_may_use_a_limit_of_its_own(make_limit: Make, ear: Ear) -> None:
    limit: Limit = make_limit(3)
    own = MemorySemaphore(1)

    def uses(event: Event) -> None:
        acquired = own.try_acquire_sync()
        assert acquired is not None
        own.release_sync(acquired)

    add_hook(uses)
    try:
        async with limit:
            pass
    finally:
        remove_hook(uses)
    assert ear.kinds == ["requested", "acquired", "released"]


async def test_the_sums_hold_when_callers_time_out_are_cancelled_and_kicked(
    make_limit: Make, ear: Ear
) -> None:
    limit: Limit = make_limit(2)
    dice = random.Random(17)
    kick = getattr(limit, "kick", limit.release)
    held: list[AcquisitionResult] = []

    async def work() -> None:
        for _ in range(20):
            with suppress(TimeoutError):
                if dice.random() < 0.3:
                    acquired = await limit.try_acquire()
                else:
                    acquired = await limit.acquire(timeout=dice.choice([0, 0.001, None]))
                if acquired is not None:
                    held.append(acquired)
                    try:
                        await asyncio.sleep(dice.choice([0, 0.001]))
                    finally:
                        held.remove(acquired)
                        await (limit.release if dice.random() < 0.8 else kick)(acquired)

    tasks = [asyncio.ensure_future(work()) for _ in range(8)]
    for task in dice.sample(tasks, 4):
        await asyncio.sleep(0.005)
        task.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait(tasks)
    for acquired in held:
        await limit.release(acquired)
    if "kick" in dir(limit):
        async with asyncio.timeout(30):  # a kick may be told a moment later
            while Counter(ear.kinds)["acquired"] > sum(k in ENDINGS for k in ear.kinds):
                await asyncio.sleep(0.001)
    count = ear.check_sums()
    assert count["acquired"] > 0


# ------------------------------------------------------ pauses and frozen values


ADAPTIVE = Adaptive(5, 1, 9, pause_on_retry_after=True)

Read = Callable[[str, str], float | None]


@pytest.fixture
def scope(url: Url) -> str:
    return url.partition(":")[0] if isinstance(url, str) else "redis"


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
    url: Url, name: str, scope: str, heard: list[Event], metric: Read, sync: bool
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


async def test_a_pause_ends_by_itself(url: Url, name: str, metric: Read) -> None:
    limit = semaphore(name, 1, url=url)
    await limit.pause(0.001)
    async with limit.cm(), asyncio.timeout(30):  # once it is over
        while metric("paused", ""):  # which is measured from a moment later
            await asyncio.sleep(0.001)


async def test_tiers_that_are_paused_and_frozen(
    url: Url, name: str, scope: str, heard: list[Event], metric: Read
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
