"""bounded_map against a hand-written pool and aiometer: CPU per item, and memory.

The work is a coroutine that does nothing, so what is measured is the pipeline
itself; the results are consumed. The pool is the one that people write: ``limit``
workers between two queues of that size.

With ``semaphore=`` on a server that is 50 ms away it is wall-clock time that counts,
against ``async with semaphore`` in as many tasks.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from tests.redis.faults._proxy import IsSlow

from benchmarks._race import Race, cpu, python, report, start, timed
from benchmarks.bench_redis import running_server
from slotwise.pipeline import bounded_map, run_bounded
from slotwise.redis import RedisConfig, RedisSemaphore

LIMIT = 1000
FAR_LIMIT, FAR_DELAY = 20, 0.05


async def nothing(item: int) -> int:
    return item


async def pool(count: int, limit: int) -> None:
    todo: asyncio.Queue[int] = asyncio.Queue(limit)
    done: asyncio.Queue[int] = asyncio.Queue(limit)

    async def produce() -> None:
        for item in range(count):
            await todo.put(item)

    async def work() -> None:
        while True:
            await done.put(await nothing(await todo.get()))

    running = [asyncio.create_task(work()) for _ in range(limit)]
    running.append(asyncio.create_task(produce()))
    for _ in range(count):
        await done.get()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def ours(count: int, limit: int, *, ordered: bool = False) -> None:
    taken = 0
    async for _ in bounded_map(nothing, range(count), limit, ordered=ordered):
        taken += 1
    assert taken == count


async def ours_without_results(count: int, limit: int) -> None:
    assert (await run_bounded(nothing, range(count), limit)).done == count


async def aiometer(count: int, limit: int) -> None:
    rival = importlib.import_module("aiometer")
    async with rival.amap(nothing, range(count), max_at_once=limit) as results:
        async for _ in results:
            pass


def measured(run: Callable[[int, int], object], count: int) -> Callable[[], float]:
    return lambda: cpu(lambda: asyncio.run(run(count, LIMIT)), count)  # type: ignore[arg-type]


def peak_memory(count: int) -> int:
    gc.collect()
    tracemalloc.start()
    asyncio.run(ours(count, LIMIT))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


# ----------------------------------------------------- a server that is far away


class _FarAway(IsSlow):
    delay = FAR_DELAY


async def blocks_in_tasks(semaphore: RedisSemaphore, items: int) -> None:
    source = iter(range(items))

    async def work() -> None:
        for item in source:
            async with semaphore:
                await nothing(item)

    await asyncio.gather(*(work() for _ in range(FAR_LIMIT)))


async def pipeline_with_semaphore(semaphore: RedisSemaphore, items: int) -> None:
    report = await run_bounded(nothing, range(items), FAR_LIMIT, semaphore=semaphore)
    assert report.done == items


def far_away(items: int, value: int, repeats: int) -> tuple[str, bool]:
    """Both in one loop and on one connection, which is opened before the clock runs."""
    names = itertools.count()
    with running_server() as port, _FarAway(port) as proxy, asyncio.Runner() as runner:
        config = RedisConfig(proxy.url)

        def run(work: Callable[[RedisSemaphore, int], object]) -> float:
            semaphore = RedisSemaphore(value, name=f"far-{next(names)}", config=config)
            runner.run(blocks_in_tasks(semaphore, 1))
            return timed(
                time.perf_counter,
                lambda: runner.run(work(semaphore, items)),  # type: ignore[arg-type]
                items,
            )

        title = (
            f"{items:,} items at limit {FAR_LIMIT}, a semaphore of {value} on a Redis"
            f" {FAR_DELAY * 1e3:g} ms away"
        )
        race = Race(
            title,
            {
                "async with in as many tasks": partial(run, blocks_in_tasks),
                "slotwise, semaphore=": partial(run, pipeline_with_semaphore),
            },
            base="async with in as many tasks",
            ours="slotwise, semaphore=",
            bar=1.2,
            repeats=repeats,
        )
        return title, race.run()


def main() -> int:
    quick = "--quick" in sys.argv
    items = 50_000 if quick else 200_000
    print(f"bounded_map on {python()}; CPU time per item, the hand-written pool = 1")
    runs = {
        "a pool between two queues": measured(pool, items),
        "slotwise": measured(ours, items),
        "slotwise, ordered": measured(partial(ours, ordered=True), items),
        "slotwise, run_bounded": measured(ours_without_results, items),
    }
    try:
        importlib.import_module("aiometer")
        runs["aiometer"] = measured(aiometer, items // 10)
    except ImportError:
        print("(aiometer is not installed: pip install aiometer)")
    title = f"{items:,} items at limit {LIMIT:,}, a coroutine that does nothing"
    race = Race(
        title,
        runs,
        base="a pool between two queues",
        ours="slotwise",
        bar=1.5,
        repeats=3 if quick else 5,
    )
    results = [(title, race.run())]
    few, many = 10_000, 100_000 if quick else 1_000_000
    peak_memory(few)
    small, large = peak_memory(few), peak_memory(many)
    title = (
        f"peak memory of {many:,} items: {large / 1e6:.2f} MB, {large / small:.3f} of that of"
        f" {few:,} (bar 1.1)"
    )
    print(f"\n{title}")
    results.append((title, large <= 1.1 * small))
    results += [far_away(100, value, 3 if quick else 5) for value in (FAR_LIMIT, FAR_LIMIT // 4)]
    return report(results)


if __name__ == "__main__":
    start(main)
