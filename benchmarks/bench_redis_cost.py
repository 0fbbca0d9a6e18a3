"""What one call costs the Redis server, by the server's own clock, beside `limits`.

A server has one core for everybody, so this decides how many acquisitions a fleet can make. The
yardstick is a semaphore's acquire and release while nobody waits.

    python -m benchmarks redis_cost
    python -m benchmarks redis_cost --quick     fewer repeats
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import redis
from limits import RateLimitItemPerSecond
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter

from benchmarks._race import Race, report, start
from benchmarks.bench_redis import running_server
from slotwise import Rate, RateLimit, Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore

QUICK = "--quick" in sys.argv
REPEATS = 5 if QUICK else 15
OPERATIONS = 400 if QUICK else 1_500
TASKS, SLOTS = 50, 10
# What a call may cost, as a part of the pair.
BARS = {
    "50 tasks on 10, an acquisition": 1.0,
    "two tiers, acquire": 1.1,
    "two tiers, acquire and release": 2.2,
    "a rate, granted": 1.5,
    "a rate, refused": 1.0,
    "slots, requests and tokens, settled": 6.0,
}
BAR_OF_PAIR, BAR_OF_COMMANDS, BAR_OF_FAIR, BAR_OF_BYTES = 25.0, 2.05, 1.25, 120.0

_numbers = itertools.count()


def spent(client: redis.Redis) -> tuple[float, int]:
    """How many µs the server has spent on scripts, and on how many calls of them."""
    stats: dict[str, Any] = client.info("commandstats")
    calls = [stats[f"cmdstat_{name}"] for name in ("evalsha", "eval") if f"cmdstat_{name}" in stats]
    return sum(each["usec"] for each in calls), sum(each["calls"] for each in calls)


Work = Callable[[RedisConfig], Coroutine[Any, Any, int]]  # returns how many operations it has made


async def pair(config: RedisConfig) -> int:
    semaphore = RedisSemaphore(10, name="pair", config=config)
    for _ in range(OPERATIONS):
        await semaphore.release(await semaphore.acquire())
    return OPERATIONS


async def crowd(config: RedisConfig) -> int:
    semaphore = RedisSemaphore(SLOTS, name="crowd", config=config)
    return await _crowd(semaphore.cm)


async def _crowd(cm: Callable[[], Any]) -> int:
    async def work() -> None:
        for _ in range(OPERATIONS // TASKS):
            async with cm():
                await asyncio.sleep(0)

    await asyncio.gather(*[work() for _ in range(TASKS)])
    return OPERATIONS // TASKS * TASKS


async def tiers(config: RedisConfig) -> int:
    limits = Tiers(Tier("user", 5, keyed=True), Tier("all", 10), name="tiers", url=config)
    for number in range(OPERATIONS):
        await limits.release(await limits.acquire(user=f"u{number % 100}"))
    return OPERATIONS


async def acquires(config: RedisConfig) -> int:
    """Only the requests of `tiers`: the holds end with the name."""
    name = f"acquires{next(_numbers)}"
    limits = Tiers(Tier("user", 100, keyed=True), Tier("all", 10_000), name=name, url=config)
    for number in range(OPERATIONS):
        await limits.acquire(user=f"u{number % 100}")
    return OPERATIONS


async def granted(config: RedisConfig) -> int:
    rate = RateLimit("granted", Rate(1_000_000, per=1), url=config)
    for _ in range(OPERATIONS):
        async with rate:
            pass
    return OPERATIONS


async def refused(config: RedisConfig) -> int:
    rate = RateLimit("refused", Rate(1, per=3600, burst=1), url=config)
    for _ in range(OPERATIONS):
        await rate.try_acquire()
    return OPERATIONS


async def calls_of_an_api(config: RedisConfig) -> int:
    limits = Tiers(
        Tier("calls", 100),
        # Never full, as in a program that needs them.
        Tier("requests", rate=Rate(60_000, per=60)),
        Tier("tokens", rate=Rate(60_000_000, per=60)),
        name="api",
        url=config,
    )
    for _ in range(OPERATIONS):
        async with limits.cm(tokens=1000) as acquired:
            acquired.settle(tokens=700)
    return OPERATIONS


def in_order(fair: bool) -> Work:
    async def work(config: RedisConfig) -> int:
        options: dict[str, Any] = {"order": "fair", "fair_by": "user"} if fair else {}
        user, every = Tier("user", 0, keyed=True), Tier("all", SLOTS)
        limits = Tiers(user, every, name=f"order{fair:d}", url=config, **options)
        users = itertools.cycle(f"u{number}" for number in range(10))
        return await _crowd(lambda: limits.cm(user=next(users)))

    return work


def rival(port: int, *, is_refused: bool) -> Callable[[], int]:
    """The moving window of `limits`, called by a plain thread."""
    limiter = MovingWindowRateLimiter(RedisStorage(f"redis://127.0.0.1:{port}"))
    item = RateLimitItemPerSecond(1 if is_refused else 10_000_000, 3600 if is_refused else 1)

    def work() -> int:
        for _ in range(OPERATIONS):
            limiter.hit(item, "is refused" if is_refused else "is granted")
        return OPERATIONS

    return work


def main() -> int:
    logging.disable()  # of what is lost when the server is emptied
    with running_server() as port, redis.Redis(port=port) as client:
        config = RedisConfig(f"redis://127.0.0.1:{port}")
        commands: dict[str, float] = {}

        def cost_of(title: str, work: Callable[[], int]) -> Callable[[], float]:
            def run() -> float:
                used, calls = spent(client)
                made = work()
                used_after, calls_after = spent(client)
                commands[title] = (calls_after - calls) / made
                return (used_after - used) / made / 1_000_000

            return run

        def ours(title: str, work: Work) -> Callable[[], float]:
            return cost_of(title, lambda: asyncio.run(work(config)))

        works: dict[str, Work] = {
            "50 tasks on 10, an acquisition": crowd,
            "two tiers, acquire": acquires,
            "two tiers, acquire and release": tiers,
            "a rate, granted": granted,
            "a rate, refused": refused,
            "slots, requests and tokens, settled": calls_of_an_api,
        }
        yardstick = {"a semaphore's pair": ours("pair", pair)}
        window = {
            "limits, moving window, granted": cost_of("", rival(port, is_refused=False)),
            "limits, moving window, refused": cost_of("", rival(port, is_refused=True)),
        }
        results = []
        for title, work in works.items():
            runs = {**yardstick, title: ours(title, work), **(window if "rate" in title else {})}
            first = "a semaphore's pair"
            race = Race(f"Server time: {title}", runs, first, title, BARS[title], REPEATS)
            results.append((race.title, race.run()))
            used = race.medians[first] * 1e6
        results.append((f"the pair takes {used:.1f} µs (bar {BAR_OF_PAIR:g})", used <= BAR_OF_PAIR))
        each = commands["slots, requests and tokens, settled"]
        title = f"a call of an api takes {each:.2f} commands (bar {BAR_OF_COMMANDS:g})"
        results.append((title, each <= BAR_OF_COMMANDS))
        orders = {
            "first come, first served": ours("fifo", in_order(fair=False)),
            "fair shares": ours("fair", in_order(fair=True)),
        }
        race = Race(
            *(
                "Server time: 50 tasks on 10, fair shares",
                orders,
                next(iter(orders)),
                "fair shares",
            ),
            *(BAR_OF_FAIR, REPEATS),
        )
        results.append((race.title, race.run()))
        results.append(bytes_left(config, client))
        for title, _ in results:
            if "(bar" in title:
                print(f"\n{title}")
        return report(results)


def bytes_left(config: RedisConfig, client: redis.Redis) -> tuple[str, bool]:
    """What a granted call that may be settled leaves on the server."""

    async def take() -> None:
        rate = RateLimit("left", Rate(1_000_000, per=1), url=config)
        for _ in range(count):
            await rate.acquire()

    count = 10_000
    client.flushall()
    before = int(client.info("memory")["used_memory_dataset"])
    asyncio.run(take())
    each = (int(client.info("memory")["used_memory_dataset"]) - before) / count
    title = f"a granted rate call leaves {each:.0f} bytes (bar {BAR_OF_BYTES:g})"
    return title, each <= BAR_OF_BYTES


if __name__ == "__main__":
    start(main)
