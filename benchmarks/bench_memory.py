"""MemorySemaphore against asyncio.Semaphore, aiologic and anyio.

Each race names its contention. CPU time of the process, except where threads
wait for each other: there the wall clock counts.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiologic
import anyio

from benchmarks._race import Race, python, report, start
from slotwise import MemorySemaphore
from slotwise.testing import FakeClock

Make = Callable[[int], AbstractAsyncContextManager[Any]]

RIVALS: dict[str, Make] = {
    "asyncio.Semaphore": asyncio.Semaphore,
    "aiologic.Semaphore": aiologic.Semaphore,
    "anyio.Semaphore": anyio.Semaphore,
    "slotwise": lambda value: MemorySemaphore(value=value),
}


def in_loop(work: Callable[[], Awaitable[float]]) -> float:
    async def main() -> float:
        return await work()

    return asyncio.run(main())


def uncontended(make: Make, pairs: int = 20_000) -> Callable[[], float]:
    """One task takes and gives, nobody else is there."""

    async def work() -> float:
        semaphore = make(10)
        started = time.process_time()
        for _ in range(pairs):
            async with semaphore:
                pass
        return (time.process_time() - started) / pairs

    return lambda: in_loop(work)


def uncontended_cm(pairs: int = 20_000, **options: Any) -> Callable[[], float]:
    async def work() -> float:
        semaphore = MemorySemaphore(value=10, **options)
        started = time.process_time()
        for _ in range(pairs):
            async with semaphore.cm() as _acquired:
                pass
        return (time.process_time() - started) / pairs

    return lambda: in_loop(work)


def crowd(make: Make, tasks: int, rounds: int, value: int) -> Callable[[], float]:
    """Many tasks, few slots, one turn of the loop inside."""

    async def work() -> float:
        semaphore = make(value)

        async def member() -> None:
            for _ in range(rounds):
                async with semaphore:
                    await asyncio.sleep(0)

        started = time.process_time()
        await asyncio.gather(*[member() for _ in range(tasks)])
        return (time.process_time() - started) / (tasks * rounds)

    return lambda: in_loop(work)


def once_each(make: Make, tasks: int) -> Callable[[], float]:
    """A long queue for one slot, each task passing once."""

    async def work() -> float:
        semaphore = make(1)

        async def member() -> None:
            async with semaphore:
                pass

        started = time.process_time()
        async with semaphore:
            waiting = [asyncio.create_task(member()) for _ in range(tasks)]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        return (time.process_time() - started) / tasks

    return lambda: in_loop(work)


def cancel_half(make: Make, tasks: int) -> Callable[[], float]:
    """Cancelling every second waiter of a long queue, per cancelled one."""

    async def work() -> float:
        semaphore = make(1)

        async def member() -> None:
            async with semaphore:
                pass

        async with semaphore:
            waiting = [asyncio.create_task(member()) for _ in range(tasks)]
            await asyncio.sleep(0)
            victims = waiting[::2]
            started = time.process_time()
            for task in victims:
                task.cancel()
            while not victims[-1].done():  # the last in the queue is the last to end
                await asyncio.sleep(0)
            cost = (time.process_time() - started) / len(victims)
        await asyncio.gather(*waiting, return_exceptions=True)
        return cost

    return lambda: in_loop(work)


def threads_with_loops(make: Make, threads: int = 4, rounds: int = 2000) -> Callable[[], float]:
    """Event loops in several threads share two slots, one turn of the loop inside."""

    def work() -> float:
        semaphore = make(2)
        barrier = threading.Barrier(threads + 1)

        async def member() -> None:
            for _ in range(rounds):
                async with semaphore:
                    await asyncio.sleep(0)

        def thread() -> None:
            barrier.wait()
            asyncio.run(member())

        running = [threading.Thread(target=thread) for _ in range(threads)]
        for one in running:
            one.start()
        barrier.wait()
        started = time.perf_counter()
        for one in running:
            one.join()
        return (time.perf_counter() - started) / (threads * rounds)

    return work


def names_once_each(count: int, ours: bool) -> Callable[[], float]:
    """Each of many names used once: a semaphore made, taken, given."""
    names = [f"name-{number}" for number in range(count)]

    async def asyncio_dict() -> float:
        semaphores: dict[str, asyncio.Semaphore] = {}
        started = time.process_time()
        for name in names:
            semaphore = semaphores.get(name)
            if semaphore is None:
                semaphore = semaphores[name] = asyncio.Semaphore(5)
            async with semaphore:
                pass
        return (time.process_time() - started) / count

    async def slotwise() -> float:
        started = time.process_time()
        for name in names:
            async with MemorySemaphore(name=name, value=5):
                pass
        return (time.process_time() - started) / count

    def work() -> float:
        if not ours:
            return in_loop(asyncio_dict)
        with FakeClock() as clock:  # so that each run starts with no names
            try:
                return in_loop(slotwise)
            finally:
                clock.advance(121)

    return work


def bytes_per_name(count: int = 100_000) -> tuple[float, float]:
    """What an idle name costs, and what is left of it after its eviction."""
    names = [f"name-{number}" for number in range(count)]

    async def use() -> None:
        for name in names:
            async with MemorySemaphore(name=name, value=5).cm():
                pass

    gc.collect()
    tracemalloc.start()
    with FakeClock() as clock:
        asyncio.run(MemorySemaphore(name="warm", value=1).acquire())
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        asyncio.run(use())
        gc.collect()
        idle = (tracemalloc.get_traced_memory()[0] - before) / count
        clock.advance(121)
        asyncio.run(MemorySemaphore(name="warm", value=1).stats())
        gc.collect()
        left = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    return idle, left


def main() -> int:
    quick = "--quick" in sys.argv
    repeats = 5 if quick else 11
    results: list[tuple[str, bool]] = []
    print(f"MemorySemaphore on {python()}; ratios, asyncio.Semaphore = 1 unless said")

    def race(title: str, runs: dict[str, Callable[[], float]], bar: float, **more: Any) -> None:
        contest = Race(
            title,
            runs,
            base=more.pop("base", "asyncio.Semaphore"),
            ours=more.pop("ours", "slotwise"),
            bar=bar,
            repeats=more.pop("repeats", repeats),
        )
        results.append((title, contest.run()))

    race(
        "uncontended `async with semaphore:`",
        {name: uncontended(make) for name, make in RIVALS.items()},
        0.7,
    )
    base = {"asyncio.Semaphore": uncontended(asyncio.Semaphore)}
    race(
        "uncontended `async with semaphore.cm() as acquired:`",
        {**base, "slotwise": uncontended_cm()},
        1.3,
    )
    race(
        "the same with a ttl",
        {**base, "slotwise": uncontended_cm(ttl=30)},
        2.2,
    )
    race(
        "100 tasks x 1000 on 10 slots, sleep(0) inside",
        {name: crowd(make, 100, 100 if quick else 1000, 10) for name, make in RIVALS.items()},
        1.1,
        repeats=3 if quick else 5,
    )
    for tasks in (20_000,) if quick else (20_000, 100_000):
        race(
            f"{tasks:,} tasks once each on 1 slot",
            {
                name: once_each(make, tasks)
                for name, make in RIVALS.items()
                if name != "anyio.Semaphore"
            },
            1.1,
            repeats=15 if tasks == 20_000 else 7,  # single runs differ by a tenth
        )
    tasks = 10_000 if quick else 100_000
    race(
        f"cancelling every second of {tasks:,} waiters, per cancelled one",
        {
            "asyncio.Semaphore": cancel_half(asyncio.Semaphore, tasks),
            "slotwise": cancel_half(RIVALS["slotwise"], tasks),
        },
        0.05,
        repeats=1,
    )
    race(
        "4 threads with loops on 2 slots, sleep(0) inside (wall; aiologic = 1)",
        {name: threads_with_loops(RIVALS[name]) for name in ("aiologic.Semaphore", "slotwise")},
        1.3,
        base="aiologic.Semaphore",
        repeats=9,
    )
    race(
        "100,000 names once each (a dict of asyncio.Semaphore = 1)",
        {
            "asyncio.Semaphore": names_once_each(100_000, ours=False),
            "slotwise": names_once_each(100_000, ours=True),
        },
        10.0,  # a name is made and forgotten each time
        repeats=3,
    )
    race(
        "linear in names: 100,000 against 10,000, per name",
        {
            "10,000 names": names_once_each(10_000, ours=True),
            "100,000 names": names_once_each(100_000, ours=True),
        },
        2.0,
        base="10,000 names",
        ours="100,000 names",
        repeats=3,
    )
    idle, left = bytes_per_name()
    title = f"bytes per idle name: {idle:.0f} (bar 450), after eviction: {left:.1f} (bar 1)"
    print(f"\n{title}")
    results.append((title, idle <= 450 and left <= 1))
    return report(results)


if __name__ == "__main__":
    start(main)
