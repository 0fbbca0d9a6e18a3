"""What limits do while their server is away, as on_unreachable says."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.redis._server import Server

from slotwise import (
    AcquireTimeout,
    LimitFull,
    Rate,
    RateLimit,
    RedisConfig,
    SemaphoreClosed,
    Tier,
    Tiers,
)
from slotwise.redis import RedisSemaphore

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, which it may stop."""
    with Server(tmp_path) as server:
        yield server


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await done():
            await asyncio.sleep(0.01)


def make(server: Server, policy: str, value: int = 1, **options: Any) -> RedisSemaphore:
    if policy == "local":
        options.setdefault("local_value", value)
    config = RedisConfig(server.url, attempts=500, max_backoff=0.1)
    options.setdefault("heartbeat_max_interval", 300)  # nobody is lost on a busy machine
    return RedisSemaphore(value, name="x", on_unreachable=policy, config=config, **options)


AWAY = {"refused": Server.kill, "stuck": Server.pause}
BACK = {"refused": Server.start, "stuck": Server.resume}


def bring_back(server: Server, how: str) -> None:
    if how == "refused":
        server.process = None
    BACK[how](server)


@pytest.mark.parametrize("how", AWAY)
async def test_open_grants_everything_until_the_server_is_back(
    server: Server, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore = make(server, "open")
    held = await semaphore.acquire()
    assert (held.scope, (await semaphore.stats()).scope) == ("redis", "redis")
    waiting = asyncio.create_task(semaphore.acquire())
    await until(lambda: _waits(semaphore))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "slotwise.redis"):
        AWAY[how](server)
        granted = await asyncio.wait_for(waiting, 30)  # who waits follows the policy
        others = [await semaphore.acquire(timeout=30) for _ in range(3)]
        others += [await asyncio.to_thread(semaphore.acquire_sync, timeout=30), granted]
        assert {each.scope for each in others} == {"open"}
        stats = await semaphore.stats()
        assert (stats.scope, stats.acquired_slots) == ("open", 5)
        assert await semaphore.locked() is False
        assert await semaphore.estimate() == 0.0
        assert _count(caplog, "releases continue in the background") == 1
        assert _count(caplog, "is back after") == 0
        assert [await semaphore.release(each) for each in others] == [True] * 5
        assert await semaphore.release(others[0]) is False
        bring_back(server, how)
        await until(lambda: _is_back(semaphore))
        await semaphore.release(held)
        await until(lambda: _asks(semaphore, "redis"))
    assert _count(caplog, "is back after") >= 1


def _count(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in each.getMessage() for each in caplog.records)


async def _waits(limit: Any) -> bool:
    return bool((await limit.stats()).waiting)


async def _is_back(limit: Any) -> bool:
    return bool((await limit.stats()).scope == "redis")


async def _asks(limit: Any, scope: str) -> bool:
    acquired = await limit.try_acquire()
    if acquired is not None:
        await limit.release(acquired)
    return acquired is not None and acquired.scope == scope


@pytest.mark.parametrize("how", AWAY)
async def test_local_is_a_limit_of_this_process(server: Server, how: str) -> None:
    semaphore, other = make(server, "local", 2), make(server, "local", 2)
    AWAY[how](server)
    held = [await semaphore.acquire(timeout=30) for _ in range(2)]
    assert {each.scope for each in held} == {"local"}
    assert sorted(each.slot_number for each in held) == [1, 2]
    assert await other.locked()
    stats = await asyncio.to_thread(other.stats_sync)
    assert (stats.scope, stats.acquired_slots, stats.max_slots) == ("local", 2, 2)
    assert await other.try_acquire() is None
    with pytest.raises(AcquireTimeout):
        await other.acquire(timeout=0)
    waiting = asyncio.create_task(other.acquire(timeout=30))
    await until(lambda: _waits(other))
    assert await asyncio.to_thread(other.release_sync, held[0].acquisition_id) is True
    await other.release(await waiting)
    async with asyncio.timeout(30), other.cm() as block:
        assert block.scope == "local"
    bring_back(server, how)
    await until(lambda: _asks(semaphore, "redis"))
    # What is held of the local limit is released there.
    assert await semaphore.release(held[1]) is True
    with server.client() as client:
        assert not [key for key in client.keys("*main*") if client.zcard(key)]


@pytest.mark.parametrize("policy", ["open", "local"])
async def test_bad_input_and_a_closed_limit_are_errors_while_the_server_is_away(
    server: Server, policy: str
) -> None:
    semaphore, successor = make(server, policy, max_waiting=1), make(server, policy)
    server.kill()
    held = await semaphore.acquire(timeout=30)
    for wrong in ({"slots": 0}, {"slots": 2}, {"label": 5}, {"timeout": -1}, {"on_full": "x"}):
        with pytest.raises((TypeError, ValueError)):
            await semaphore.acquire(**wrong)
    waiting = []
    if policy == "local":
        waiting = [asyncio.create_task(semaphore.acquire())]
        await until(lambda: _waits(semaphore))
        with pytest.raises(LimitFull):
            await semaphore.acquire()
    await semaphore.close()
    for task in waiting:
        with pytest.raises(SemaphoreClosed):
            await asyncio.wait_for(task, 30)
    with pytest.raises(SemaphoreClosed):
        await semaphore.acquire(timeout=10)
    with pytest.raises(SemaphoreClosed):
        await successor.acquire(timeout=10)  # made before the close
    assert await semaphore.release(held) is True
    async with asyncio.timeout(30), make(server, policy).cm() as acquired:
        assert acquired.scope == policy


@pytest.mark.soak
async def test_waiters_follow_the_policy_in_the_order_of_their_requests(server: Server) -> None:
    # Refused connections count at once; a silence must not, or a stalled machine is an outage.
    semaphore = make(server, "local", local_value=3, unreachable_after=60)
    held = [await semaphore.acquire()]
    served: list[int] = []

    async def ask(number: int) -> None:
        held.append(await semaphore.acquire())
        served.append(number)

    tasks = []
    for number in range(8):
        tasks.append(asyncio.create_task(ask(number)))
        await until(lambda: _has_waiters(semaphore, len(tasks)))
    server.kill()
    await until(lambda: asyncio.sleep(0, len(served) >= 3))
    assert served == [0, 1, 2]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    bring_back(server, "refused")
    await until(lambda: _is_back(semaphore))
    for each in held:
        await semaphore.release(each)


async def _has_waiters(limit: Any, count: int) -> bool:
    return bool((await limit.stats()).waiting == count)


async def test_tiers_and_rates_have_local_values(server: Server) -> None:
    slow = Rate(1, per=1000, burst=3)
    tiers = Tiers(
        *(Tier("tenant", 5, keyed=True), Tier("tokens", rate=Rate(9, per=1, burst=9))),
        Tier("all", 9),
        url=RedisConfig(server.url, attempts=500, max_backoff=0.1),
        name="t",
        on_unreachable="local",
        local_value={"tenant": 1, "tokens": slow},
    )
    rate = RateLimit(
        *("r", Rate(9, per=1, burst=9)),
        url=RedisConfig(server.url, attempts=500, max_backoff=0.1),
        on_unreachable="local",
        local_value=slow,
    )
    assert (rate.local_value, copy.copy(rate).on_unreachable) == (slow, "local")
    assert (await tiers.stats())["all"].scope == "redis"
    server.kill()
    held = await tiers.acquire(tenant="acme", tokens=2, timeout=30)
    assert held.scope == "local"
    with pytest.raises(AcquireTimeout, match="tenant 'acme'"):
        await tiers.acquire(tenant="acme", timeout=0)
    assert await tiers.try_acquire(tenant="umbrella", tokens=2) is None
    held.settle(tokens=0)
    with pytest.raises(ValueError, match="burst of 3"):
        await tiers.acquire(tenant="umbrella", tokens=4, timeout=1)
    stats = await tiers.stats()
    assert {each.scope for each in stats.values()} == {"local"}
    assert stats["tokens"].level == pytest.approx(3, abs=0.1)
    assert (await tiers.at(tenant="acme").stats()).scope == "local"
    assert await tiers.release(held) is True
    assert (await rate.acquire(cost=3, timeout=30)).scope == "local"
    assert await rate.try_acquire() is None
    expected = await rate.estimate()
    assert expected is not None
    assert expected > 100


async def test_open_tiers_and_rates_are_not_limited(server: Server) -> None:
    url = RedisConfig(server.url, attempts=500, max_backoff=0.1)
    tiers = Tiers(Tier("t", 1, keyed=True), Tier("all", 1), url=url, on_unreachable="open")
    rate = RateLimit("r", Rate(1, per=1000), url=url, on_unreachable="open")
    server.kill()
    for _ in range(3):
        async with asyncio.timeout(30), tiers.cm(t="x") as acquired:
            assert acquired.scope == "open"
            await rate.acquire()
    assert await tiers.at(t="x").locked() is False
    assert (await tiers.at(t="x").stats()).scope == "open"
    assert await rate.locked() is False


@pytest.mark.parametrize(
    "options",
    [
        {"on_unreachable": "close"},
        {"on_unreachable": None},
        {"on_unreachable": "local"},
        {"on_unreachable": "local", "local_value": 0},
        {"on_unreachable": "open", "local_value": 1},
        {"on_unreachable": "open", "unreachable_after": 0},
        {"on_unreachable": "open", "unreachable_after": None},
    ],
)
def test_wrong_arguments_are_errors_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=r"on_unreachable|local_value|unreachable_aft"
    ):
        RedisSemaphore(1, name="x", **options)
    with pytest.raises(
        (TypeError, ValueError), match=r"on_unreachable|local_value|unreachable_aft"
    ):
        Tiers(Tier("t", 1), name="x", **options)  # on every driver


def test_local_values_name_tiers_and_fit_them() -> None:
    def tiers(**options: Any) -> Tiers:
        given = Tier("t", 1), Tier("r", rate=Rate(1, per=1))
        return Tiers(*given, name="x", on_unreachable="local", **options)

    assert tiers(local_value=3).local_value == 3
    for wrong in ({"u": 1}, {"r": 1}, {"t": Rate(1, per=1)}, {"t": -1}, 0):
        with pytest.raises((TypeError, ValueError), match="local_value"):
            tiers(local_value=wrong)


@pytest.mark.parametrize("policy", ["open", "local"])
async def test_the_first_estimate_of_a_server_that_is_away_is_that_of_the_policy(
    policy: str, tmp_path: Path
) -> None:
    config = RedisConfig(f"unix://{tmp_path}/nobody.sock", attempts=1)
    options: dict[str, Any] = {"on_unreachable": policy}
    if policy == "local":
        options["local_value"] = 1
    semaphore = RedisSemaphore(5, name="x", config=config, **options)
    assert await semaphore.estimate() == 0.0
    other = RedisConfig(f"unix://{tmp_path}/nobody-else.sock", attempts=1)
    tiers = Tiers(Tier("user", 5, keyed=True), Tier("all", 5), name="x", url=other, **options)
    assert await tiers.estimate(user="ada") == 0.0
