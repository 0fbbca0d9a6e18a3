"""The workloads of `python -m benchmarks against COMMIT`, run by one version of slotwise.

This file is a program: it imports the slotwise that `PYTHONPATH` names, reads names of workloads
from its input, runs each once, and writes the CPU and the seconds that one operation took. It
uses only calls that old versions have too, so that one file serves both.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

PAIRS = 20_000
TASKS = 10_000
KEYS = 1_000

SERVER = os.environ.get("BENCH_REDIS_URL", "")
SIDE = os.environ.get("BENCH_SIDE", "")  # keeps the names of the two versions apart on the server

Workload = Callable[[], int]  # does the work, returns how many operations that was

workloads: dict[str, Workload] = {}
with_server: set[str] = set()


def workload(title: str, *, server: bool = False) -> Callable[[Workload], Workload]:
    def register(work: Workload) -> Workload:
        workloads[title] = work
        if server:
            with_server.add(title)
        return work

    return register


class Loop:
    """One event loop for all workloads, so that Redis is connected to once."""

    runner: asyncio.Runner | None = None

    @classmethod
    def run(cls, work: Awaitable[None]) -> None:
        if cls.runner is None:
            cls.runner = asyncio.Runner()

        async def main() -> None:
            await work

        cls.runner.run(main())


async def pairs(make: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        async with make():
            pass


async def crowd(blocks: list[Callable[[], Any]]) -> None:
    async def member(block: Callable[[], Any]) -> None:
        async with block():
            await asyncio.sleep(0)

    await asyncio.gather(*[member(block) for block in blocks])


def two_tiers(url: Any, wide: int) -> Callable[[str], Callable[[], Any]]:
    from slotwise import Tier, Tiers

    tiers: Any = Tiers(
        Tier("user", 1, keyed=True), Tier("all", wide), name=f"tiers {wide} {SIDE}", url=url
    )
    return lambda key: lambda: tiers.cm(user=key)


@workload("memory: pair, async with sem.cm()")
def memory_pair() -> int:
    from slotwise import MemorySemaphore

    semaphore = MemorySemaphore(10, name="pair")
    Loop.run(pairs(semaphore.cm, PAIRS))
    return PAIRS


@workload("memory: pair, async with sem")
def memory_bare_pair() -> int:
    from slotwise import MemorySemaphore

    semaphore = MemorySemaphore(10, name="bare pair")
    Loop.run(pairs(lambda: semaphore, PAIRS))
    return PAIRS


@workload("memory: pair, acquire() and release()")
def memory_acquire() -> int:
    from slotwise import MemorySemaphore

    semaphore = MemorySemaphore(10, name="acquire")

    async def work() -> None:
        for _ in range(PAIRS):
            acquired = await semaphore.acquire()
            await semaphore.release(acquired.acquisition_id)

    Loop.run(work())
    return PAIRS


@workload("memory: pair, with sem.cm()")
def memory_sync_pair() -> int:
    from slotwise import MemorySemaphore

    semaphore = MemorySemaphore(10, name="sync pair")
    for _ in range(PAIRS):
        with semaphore.cm():
            pass
    return PAIRS


@workload("memory: 100 tasks on 10 slots")
def memory_tasks() -> int:
    from slotwise import MemorySemaphore

    semaphore = MemorySemaphore(10, name="tasks")

    async def member() -> None:
        for _ in range(100):
            async with semaphore.cm():
                await asyncio.sleep(0)

    async def work() -> None:
        await asyncio.gather(*[member() for _ in range(100)])

    Loop.run(work())
    return 10_000


@workload("memory: tiers, pair")
def memory_tiers_pair() -> int:
    block = two_tiers(None, 10)("somebody")
    Loop.run(pairs(block, PAIRS))
    return PAIRS


@workload(f"memory: tiers, {TASKS:,} tasks over {KEYS:,} keys")
def memory_tiers_crowd() -> int:
    of = two_tiers(None, 100)
    Loop.run(crowd([of(f"user-{number % KEYS}") for number in range(TASKS)]))
    return TASKS


@workload("processes: pair, async with sem.cm()")
def process_pair() -> int:
    from slotwise import ProcessSemaphore

    times = 1_000
    with tempfile.TemporaryDirectory() as directory:
        semaphore = ProcessSemaphore(10, name="pair", directory=directory)
        Loop.run(pairs(semaphore.cm, times))
    return times


@workload("processes: pair, with sem.cm()")
def process_sync_pair() -> int:
    from slotwise import ProcessSemaphore

    times = 1_000
    with tempfile.TemporaryDirectory() as directory:
        semaphore = ProcessSemaphore(10, name="pair", directory=directory)
        for _ in range(times):
            with semaphore.cm():
                pass
    return times


@workload("processes: tiers, pair")
def process_tiers_pair() -> int:
    times = 1_000
    with tempfile.TemporaryDirectory() as directory:
        Loop.run(pairs(two_tiers(f"process://{directory}", 10)("somebody"), times))
    return times


def redis_semaphore(name: str, value: int) -> Any:
    from slotwise import RedisConfig, RedisSemaphore

    return RedisSemaphore(name=f"{name} {SIDE}", value=value, config=RedisConfig(SERVER))


@workload("Redis: pair, async with sem.cm()", server=True)
def redis_pair() -> int:
    times = 1_000
    Loop.run(pairs(redis_semaphore("pair", 10).cm, times))
    return times


@workload("Redis: pair, with sem.cm()", server=True)
def redis_sync_pair() -> int:
    times = 500
    semaphore = redis_semaphore("sync pair", 10)
    for _ in range(times):
        with semaphore.cm():
            pass
    return times


@workload("Redis: 50 tasks on 10 slots", server=True)
def redis_tasks() -> int:
    semaphore = redis_semaphore("tasks", 10)

    async def member() -> None:
        for _ in range(40):
            async with semaphore.cm():
                await asyncio.sleep(0)

    async def work() -> None:
        await asyncio.gather(*[member() for _ in range(50)])

    Loop.run(work())
    return 2_000


@workload("Redis: tiers, pair", server=True)
def redis_tiers_pair() -> int:
    times = 500
    Loop.run(pairs(two_tiers(SERVER, 10)("somebody"), times))
    return times


@workload(f"Redis: tiers, {TASKS // 2:,} tasks over {KEYS:,} keys", server=True)
def redis_tiers_crowd() -> int:
    of = two_tiers(SERVER, 100)
    Loop.run(crowd([of(f"user-{number % KEYS}") for number in range(TASKS // 2)]))
    return TASKS // 2


@workload("effects: pair")
def effects_pair() -> int:
    from slotwise.effects import AcquireSemaphore, CreateSemaphore, ReleaseSemaphore, do, run

    @do
    def program() -> Any:
        semaphore = yield CreateSemaphore(1)
        for _ in range(PAIRS):
            yield AcquireSemaphore(semaphore)
            yield ReleaseSemaphore(semaphore)

    run(program())
    return PAIRS


def pipeline(ordered: bool) -> int:
    from slotwise.pipeline import bounded_map

    async def nothing(item: int) -> int:
        return item

    async def work() -> None:
        async for _ in bounded_map(nothing, range(PAIRS), 10, ordered=ordered):
            pass

    Loop.run(work())
    return PAIRS


@workload("pipeline: items")
def pipeline_items() -> int:
    return pipeline(ordered=False)


@workload("pipeline: items in order")
def pipeline_ordered() -> int:
    return pipeline(ordered=True)


def cpu_of_server() -> float:
    import redis

    with redis.Redis.from_url(SERVER) as client:
        used: Any = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def measure(title: str) -> dict[str, Any]:
    server = title in with_server
    try:
        used = cpu_of_server() if server else 0.0
        cpu, started = time.process_time(), time.perf_counter()
        operations = workloads[title]()
        seconds = time.perf_counter() - started
        cpu = time.process_time() - cpu
        if server:
            cpu += cpu_of_server() - used
    except Exception as error:  # an older version may not have it
        return {"error": f"{type(error).__name__}: {error}"}
    return {"cpu": cpu / operations, "seconds": seconds / operations}


def main() -> None:
    import slotwise

    print(json.dumps({"path": slotwise.__file__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(line.rstrip("\n"))), flush=True)


if __name__ == "__main__":
    main()
