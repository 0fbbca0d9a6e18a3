"""How often a signal handler that raises costs a slot: MemorySemaphore, asyncio and aiologic.

A timer raises at a random instant while a loop does nothing but take a slot and give it back. All
rivals are interrupted in turns in one process. No Python code can save an exception between the end
of one call and the start of the next; the quicker a pair is, the larger the share of such instants.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import aiologic

from benchmarks._race import python, report, start
from slotwise import MemorySemaphore

SLOTS = 16

Semaphore = Any  # that of any rival: this is about their common calls


class Interrupt(BaseException):
    """What the signal handler raises."""


def interrupt(*_: object) -> None:
    raise Interrupt


async def async_with(semaphore: Semaphore) -> None:
    while True:
        async with semaphore:
            pass


async def async_cm(semaphore: Semaphore) -> None:
    while True:
        async with semaphore.cm():
            pass


async def acquire(semaphore: Semaphore) -> None:
    while True:
        await semaphore.release(await semaphore.acquire())


async def acquire_of_asyncio(semaphore: Semaphore) -> None:
    while True:
        await semaphore.acquire()
        semaphore.release()


def sync_with(semaphore: Semaphore) -> None:
    while True:
        with semaphore:
            pass


def sync_cm(semaphore: Semaphore) -> None:
    while True:
        with semaphore.cm():
            pass


def in_task(work: Callable[[Semaphore], Coroutine[Any, Any, None]]) -> Callable[[Semaphore], None]:
    # Nothing is ever waited for, so no event loop is needed.
    return lambda semaphore: work(semaphore).send(None)


def lost(semaphore: Semaphore) -> int:
    if isinstance(semaphore, MemorySemaphore):
        return semaphore.stats_sync().acquired_slots
    if isinstance(semaphore, asyncio.Semaphore):
        return SLOTS - semaphore._value
    return SLOTS - int(semaphore.value)


Case = tuple[Callable[[int], Semaphore], Callable[[Semaphore], None]]

# Ours come first in each group; they are to lose no more than the first of the rivals.
GROUPS: dict[str, dict[str, Case]] = {
    "async with": {
        "slotwise": (MemorySemaphore, in_task(async_with)),
        "slotwise, cm()": (MemorySemaphore, in_task(async_cm)),
        "asyncio": (asyncio.Semaphore, in_task(async_with)),
        "aiologic": (aiologic.Semaphore, in_task(async_with)),
    },
    "await acquire(), release": {
        "slotwise": (MemorySemaphore, in_task(acquire)),
        "asyncio": (asyncio.Semaphore, in_task(acquire_of_asyncio)),
    },
    "with": {
        "slotwise": (MemorySemaphore, sync_with),
        "slotwise, cm()": (MemorySemaphore, sync_cm),
        "aiologic": (aiologic.Semaphore, sync_with),
    },
}


def interrupted(make: Callable[[int], Semaphore], work: Callable[[Semaphore], None]) -> bool:
    """Interrupt once; whether that cost a slot."""
    semaphore = make(SLOTS)
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-5, 1.5e-4))
        work(semaphore)
    except Interrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return lost(semaphore) > 0


def main() -> int:
    times = 1000 if "--quick" in sys.argv else 5000
    cases = {(group, name): case for group, row in GROUPS.items() for name, case in row.items()}
    costs = dict.fromkeys(cases, 0)
    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda _: None  # interrupts in somebody's finalizer
    gc.disable()
    for _ in range(times):
        for key, (make, work) in cases.items():
            costs[key] += interrupted(make, work)
    gc.enable()
    print(f"interrupts that cost a slot on {python()}, {times:,} each")
    results = []
    for group, row in GROUPS.items():
        print(f"\n{group}")
        for name in row:
            print(f"  {name:<20} {100 * costs[group, name] / times:5.1f} %")
        ours = [costs[group, name] for name in row if name.startswith("slotwise")]
        rivals = [costs[group, name] for name in row if not name.startswith("slotwise")]
        # One percentage point more or less is chance.
        results.append((group, max(ours) <= rivals[0] + times / 100))
    return report(results)


if __name__ == "__main__":
    start(main)
