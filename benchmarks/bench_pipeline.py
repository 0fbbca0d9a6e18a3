"""bounded_map against a hand-written pool and aiometer: CPU per item, and memory.

The work is a coroutine that does nothing, so what is measured is the pipeline
itself; the results are consumed. The pool is the one that people write: ``limit``
workers between two queues of that size.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial

from benchmarks._race import Race, cpu, python, report
from slotwise.pipeline import bounded_map, run_bounded

LIMIT = 1000


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
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
