"""What RedisSemaphore does beyond the contract that all drivers share."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis
from tests.redis._server import until

from slotwise import (
    AcquireTimeout,
    BackendError,
)
from slotwise.redis import RedisConfig, RedisSemaphore


def documented_keys(client: redis.Redis) -> list[str]:
    """What may not stay: everything but the facts that expire by themselves."""
    facts = ("semaphore_state", "semaphore_max", ":names")
    return [key for key in client.scan_iter() if not any(fact in key for fact in facts)]


def assert_nothing_left(client: redis.Redis) -> None:
    assert documented_keys(client) == []
    for key in client.scan_iter():
        assert client.pttl(key) > 0, f"{key} would stay forever"
        if "state" in key:
            assert [field for field in client.hkeys(key) if field.startswith("sw-")] == []


async def in_line(semaphore: RedisSemaphore, count: int) -> None:
    async def enough() -> bool:
        try:
            return (await semaphore.stats()).waiting == count
        except BackendError:  # a busy machine: no answer in time
            return False

    await until(enough, f"{count} in line")


async def test_requests_that_travel_together_keep_their_order(
    config: RedisConfig, client: redis.Redis
) -> None:
    one = RedisSemaphore(name="s", value=2, config=config)
    other = RedisSemaphore(name="s", value=2, config=config)
    held = await one.acquire(2)
    order: list[int] = []

    async def wait(n: int) -> None:
        semaphore = one if n % 5 else other
        label = "labelled" if n % 7 == 3 else None
        async with semaphore.cm(2 if n % 11 == 4 else 1, label=label):
            order.append(n)

    first = asyncio.create_task(wait(0))
    await in_line(one, 1)
    rest = [asyncio.create_task(wait(n)) for n in range(1, 60)]
    await in_line(one, 60)
    line = [each.acquisition_id for each in await one.waiters()]
    numbers = [int(each.rpartition("-")[2].partition("*")[0]) for each in line]
    assert numbers == sorted(numbers), "the order in which they asked"
    await one.release(held)
    await asyncio.gather(first, *rest)
    assert sorted(order) == list(range(60))
    assert_nothing_left(client)


async def test_a_request_may_time_out_or_be_cancelled_before_it_travels(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    with pytest.raises(AcquireTimeout, match=r"1 of 1 held .*, 1 other waiting"):
        await semaphore.acquire(timeout=0.0001)
    several = [asyncio.create_task(semaphore.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in several:
        task.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError)
        for each in await asyncio.gather(*several, return_exceptions=True)
    )
    assert (await semaphore.stats()).waiting == 1
    await semaphore.release(held)
    await semaphore.release(await waiting)
    assert_nothing_left(client)


async def test_fencing_tokens_increase_over_instances_and_idle_times(config: RedisConfig) -> None:
    tokens = []
    for _ in range(5):
        semaphore = RedisSemaphore(name="s", value=2, config=config)
        async with semaphore.cm() as a, semaphore.cm() as b:
            tokens += [a.fencing_token, b.fencing_token]
    assert all(token is not None for token in tokens)
    assert tokens == sorted(set(tokens), key=lambda token: token or 0)
    assert abs((tokens[0] or 0) / 1e6 - time.time()) < 60, "tokens follow the server's clock"


@pytest.mark.soak
async def test_cancelling_at_any_moment_neither_leaks_nor_loses(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=2, config=config)

    async def work(n: int) -> None:
        async with semaphore:
            await asyncio.sleep(n % 3 / 1000)

    for again in range(30):
        tasks = [asyncio.create_task(work(n)) for n in range(12)]
        for n, task in enumerate(tasks):
            for _ in range((again + n) % 7):
                await asyncio.sleep(0)
            if n % 2:
                task.cancel()
                if n % 4 == 1:
                    await asyncio.sleep(0)
                    task.cancel()  # and again, while it cleans up
        await asyncio.gather(*tasks, return_exceptions=True)
        stats = await semaphore.stats()
        assert (stats.acquired_slots, stats.waiting) == (0, 0)
    assert_nothing_left(client)


async def test_tasks_threads_and_loops_share_one_line(config: RedisConfig) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    held = await semaphore.acquire()
    order: list[str] = []

    def in_a_thread() -> None:
        with semaphore.cm():
            order.append("thread")

    def in_another_loop() -> None:
        async def main() -> None:
            async with semaphore.cm():
                order.append("loop")

        asyncio.run(main())

    async def in_this_loop() -> None:
        async with semaphore.cm():
            order.append("task")

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    await in_line(semaphore, 1)
    other = threading.Thread(target=in_another_loop)
    other.start()
    await in_line(semaphore, 2)
    task = asyncio.create_task(in_this_loop())
    await in_line(semaphore, 3)
    await semaphore.release(held)
    await task
    await asyncio.to_thread(thread.join, 20)
    await asyncio.to_thread(other.join, 20)
    assert order == ["thread", "loop", "task"]


@pytest.mark.soak
async def test_10_000_acquisitions_leave_nothing_behind(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=50, ttl=60, config=config)

    async def work() -> None:
        for _ in range(100):
            async with semaphore:
                pass

    await asyncio.gather(*(work() for _ in range(100)))
    assert_nothing_left(client)
