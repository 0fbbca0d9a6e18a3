"""Rates against rivals: aiolimiter in memory, limits on Redis. CPU time of the process."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from math import inf
from typing import Any

import redis
from aiolimiter import AsyncLimiter
from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from benchmarks._race import Race
from slotwise import MemorySemaphore, Rate, RateLimit, RedisConfig, Tier, Tiers

PAIRS = 20_000
WAITERS = 2_000

# So much that nobody waits.
_PLENTY = Rate(1_000_000, per=1, burst=1_000_000)


def one_semaphore() -> float:
    async def work() -> float:
        semaphore = MemorySemaphore(value=10)
        started = time.process_time()
        for _ in range(PAIRS):
            async with semaphore.cm() as _acquired:
                pass
        return (time.process_time() - started) / PAIRS

    return asyncio.run(work())


def rate_and_slots(cost: int | None = None) -> Callable[[], float]:
    costs: dict[str, Any] = {} if cost is None else {"requests": cost}

    async def work() -> float:
        tiers = Tiers(Tier("requests", rate=_PLENTY), Tier("all", 10))
        started = time.process_time()
        for _ in range(PAIRS):
            async with tiers.cm(**costs) as _acquired:
                pass
        return (time.process_time() - started) / PAIRS

    return lambda: asyncio.run(work())


def alone_with_aiolimiter() -> float:
    async def work() -> float:
        limiter = AsyncLimiter(1_000_000, 1)
        started = time.process_time()
        for _ in range(PAIRS):
            await limiter.acquire()
        return (time.process_time() - started) / PAIRS

    return asyncio.run(work())


def alone_with_ours() -> float:
    async def work() -> float:
        limit = RateLimit(None, _PLENTY)
        started = time.process_time()
        for _ in range(PAIRS):
            await limit.acquire()
        return (time.process_time() - started) / PAIRS

    return asyncio.run(work())


async def _crowd(limiter: RateLimit | AsyncLimiter, burst: int) -> float:
    await limiter.acquire(burst)  # from now on everybody waits
    started = time.process_time()
    await asyncio.gather(*[limiter.acquire() for _ in range(WAITERS)])
    return (time.process_time() - started) / WAITERS


def crowd_with_aiolimiter() -> float:
    async def work() -> float:
        return await _crowd(AsyncLimiter(1_000, 0.1), 1_000)

    return asyncio.run(work())


def crowd_with_ours() -> float:
    async def work() -> float:
        return await _crowd(RateLimit(None, Rate(10_000, per=1)), 1_000)

    return asyncio.run(work())


def rates_in_memory(repeats: int) -> list[tuple[str, bool]]:
    races = [
        Race(
            "pair through a rate and a slot tier (one sem.cm() = 1)",
            {
                "one sem.cm()": one_semaphore,
                "a rate and a slot tier": rate_and_slots(),
                "the same with a cost": rate_and_slots(3),
            },
            *("one sem.cm()", "a rate and a slot tier", 5.0, repeats),
        ),
        Race(
            "acquire of a rate, nobody waits (aiolimiter = 1)",
            {"aiolimiter": alone_with_aiolimiter, "RateLimit.acquire()": alone_with_ours},
            *("aiolimiter", "RateLimit.acquire()", 1.7, repeats),
        ),
        Race(
            f"acquire of a rate, {WAITERS:,} waiters (aiolimiter = 1)",
            {"aiolimiter": crowd_with_aiolimiter, "RateLimit.acquire()": crowd_with_ours},
            *("aiolimiter", "RateLimit.acquire()", 4.0, repeats),
        ),
    ]
    return [(race.title, race.run()) for race in races]


def rate_on_redis(runner: asyncio.Runner, port: int, repeats: int) -> None:
    """A rate alone, one call after the other; CPU of client and server. It has no bar.

    Theirs counts, and refuses; ours has a queue, and remembers who took what.
    """
    times, url = 300, f"redis://127.0.0.1:{port}"
    server = redis.Redis(port=port)

    def cpu() -> float:
        used = server.info("cpu")
        return time.process_time() + float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    async def ours() -> float:
        limit = RateLimit(f"rate-{secrets.token_hex(4)}", _PLENTY, url=RedisConfig(url))
        await limit.acquire()
        started = cpu()
        for _ in range(times):
            await limit.acquire()
        return (cpu() - started) / times

    async def theirs() -> float:
        storage = RedisStorage(f"async+{url}", implementation="redispy")
        limiter = SlidingWindowCounterRateLimiter(storage)
        item, name = RateLimitItemPerSecond(1_000_000), f"rate-{secrets.token_hex(4)}"
        assert await limiter.hit(item, name)
        started = cpu()
        for _ in range(times):
            assert await limiter.hit(item, name)
        return (cpu() - started) / times

    runs = {
        "limits, sliding window": lambda: runner.run(theirs()),
        "RateLimit.acquire()": lambda: runner.run(ours()),
    }
    title = "Redis, acquire of a rate, CPU of client and server (limits = 1)"
    Race(title, runs, "limits, sliding window", "RateLimit.acquire()", inf, repeats).run()
