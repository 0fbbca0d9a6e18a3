"""The effects under `run`, against doeff and asyncio: CPU time per operation.

doeff is raced where it is installed (`pip install doeff`), with its own default
scheduler; asyncio with its own loop.

    python -m benchmarks.bench_effects [--quick]
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks._race import Race, Run, cpu, report, start
from slotwise.effects import (
    AcquireSemaphore,
    Checkpoint,
    CreateSemaphore,
    Gather,
    ReleaseSemaphore,
    Spawn,
    Wait,
    do,
    explore,
    run,
)

PAIRS = 20_000
SPAWNS = 10_000
TASKS = 1000
ACQUISITIONS = 10
PERMITS = 8
SCHEDULES = 500


# ------------------------------------------------- one permit, nobody else wants it


@do
def pairs() -> Any:
    semaphore = yield CreateSemaphore(1)
    for _ in range(PAIRS):
        yield AcquireSemaphore(semaphore)
        yield ReleaseSemaphore(semaphore)


def doeff_pairs() -> Callable[[], Any] | None:
    try:
        doeff: Any = importlib.import_module("doeff")
        scheduled: Any = importlib.import_module("doeff_core_effects.scheduler").scheduled
    except ImportError:
        return None
    acquire, release = doeff.AcquireSemaphore, doeff.ReleaseSemaphore

    @doeff.do  # type: ignore[untyped-decorator]
    def program() -> Any:
        semaphore = yield doeff.CreateSemaphore(1)
        for _ in range(PAIRS):
            yield acquire(semaphore)
            yield release(semaphore)

    return lambda: doeff.run(scheduled(program()))


# ------------------------------------------------------ one task at a time, awaited


@do
def nothing() -> Any:
    return None
    yield


@do
def spawns() -> Any:
    for _ in range(SPAWNS):
        task = yield Spawn(nothing())
        yield Wait(task)


async def asyncio_nothing() -> None:
    return None


async def asyncio_spawns() -> None:
    for _ in range(SPAWNS):
        await asyncio.create_task(asyncio_nothing())


# --------------------------------------------------- a thousand tasks, eight permits


@do
def worker(semaphore: Any) -> Any:
    for _ in range(ACQUISITIONS):
        yield AcquireSemaphore(semaphore)
        try:
            yield Checkpoint()
        finally:
            yield ReleaseSemaphore(semaphore)


@do
def crowd() -> Any:
    semaphore = yield CreateSemaphore(PERMITS)
    yield Gather(*[worker(semaphore) for _ in range(TASKS)])


async def asyncio_worker(semaphore: asyncio.Semaphore) -> None:
    for _ in range(ACQUISITIONS):
        async with semaphore:
            await asyncio.sleep(0)


async def asyncio_crowd() -> None:
    semaphore = asyncio.Semaphore(PERMITS)
    await asyncio.gather(*[asyncio_worker(semaphore) for _ in range(TASKS)])


# ------------------------------------------- four tasks that share two permits, explored


@do
def short_worker(semaphore: Any) -> Any:
    for _ in range(3):
        yield AcquireSemaphore(semaphore)
        yield Checkpoint()
        yield ReleaseSemaphore(semaphore)


@do
def small_world() -> Any:
    semaphore = yield CreateSemaphore(2)
    yield Gather(*[short_worker(semaphore) for _ in range(4)])


@do
def walker() -> Any:
    for _ in range(3):
        yield Checkpoint()


@do
def two_walkers() -> Any:
    yield Gather(walker(), walker())


def explore_many() -> None:
    assert explore(small_world, max_schedules=SCHEDULES).schedules == SCHEDULES


def run_many() -> None:
    for _ in range(SCHEDULES):
        run(small_world())


def explore_all() -> None:
    for _ in range(5):
        assert explore(two_walkers).schedules == 70


def run_as_often() -> None:
    for _ in range(350):
        run(two_walkers())


def costs(work: Callable[[], object], operations: int) -> Run:
    return lambda: cpu(work, operations)


def main() -> int:
    repeats = 3 if "--quick" in sys.argv[1:] else 9
    races = [
        Race(
            "spawn + wait, one task at a time (asyncio's create_task + await = 1)",
            {
                "asyncio": costs(lambda: asyncio.run(asyncio_spawns()), SPAWNS),
                "slotwise.effects": costs(lambda: run(spawns()), SPAWNS),
            },
            base="asyncio",
            ours="slotwise.effects",
            bar=0.5,
        ),
        Race(
            f"{TASKS} tasks x {ACQUISITIONS} holds of {PERMITS} permits, one checkpoint in each"
            " (asyncio = 1)",
            {
                "asyncio": costs(lambda: asyncio.run(asyncio_crowd()), TASKS * ACQUISITIONS),
                "slotwise.effects": costs(lambda: run(crowd()), TASKS * ACQUISITIONS),
            },
            base="asyncio",
            ours="slotwise.effects",
            bar=2,
        ),
        Race(
            "explore, a schedule of 4 tasks on 2 permits (one run = 1)",
            {"run": costs(run_many, SCHEDULES), "explore": costs(explore_many, SCHEDULES)},
            base="run",
            ours="explore",
            bar=2.5,
        ),
        Race(
            "explore, a schedule of 2 tasks with 3 checkpoints (one run = 1)",
            {"run": costs(run_as_often, 350), "explore": costs(explore_all, 350)},
            base="run",
            ours="explore",
            bar=2.5,
        ),
    ]
    rival = doeff_pairs()
    if rival is None:
        print("doeff is not installed: acquire + release is not compared (pip install doeff)")
        print(f"  slotwise.effects {cpu(lambda: run(pairs()), PAIRS) * 1e6:.2f} µs")
    else:
        races.insert(
            0,
            Race(
                "acquire + release, uncontended (doeff = 1)",
                {
                    "doeff": costs(rival, PAIRS),
                    "slotwise.effects": costs(lambda: run(pairs()), PAIRS),
                },
                base="doeff",
                ours="slotwise.effects",
                bar=1,
            ),
        )
    results = []
    for race in races:
        race.repeats = repeats
        results.append((race.title, race.run()))
    return report(results)


if __name__ == "__main__":
    start(main)
