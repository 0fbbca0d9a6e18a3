"""Long storms: everything that can happen to a semaphore in memory, at random, for minutes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator

import pytest
from tests.memory._inside import check

from slotwise import AcquireTimeout, MemorySemaphore, SemaphoreStats

SECONDS = 60.0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_loops_and_threads_leaves_nothing_behind(seed: int) -> None:
    """After a shrink the old value bounds what is held, so the largest ever does."""
    most_value = 6
    semaphore = MemorySemaphore(value=3)
    held, guard, overrun = 0, threading.Lock(), []
    end = time.monotonic() + SECONDS

    @contextlib.contextmanager
    def counted(slots: int) -> Iterator[None]:
        nonlocal held
        with guard:
            held += slots
            if held > most_value:
                overrun.append(held)
        try:
            yield
        finally:
            with guard:
                held -= slots

    async def task(dice: random.Random) -> None:
        while time.monotonic() < end:
            slots = dice.choice([1, 1, 1, 2])
            with contextlib.suppress(AcquireTimeout, ValueError):
                if dice.random() < 0.5:
                    async with semaphore:
                        with counted(1):
                            await asyncio.sleep(dice.choice([0, 0, 0.001]))
                else:
                    async with semaphore.cm(slots, timeout=dice.choice([None, 0.01, 0])):
                        with counted(slots):
                            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def chaos(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            tasks = [asyncio.create_task(task(dice)) for _ in range(6)]
            await asyncio.sleep(dice.random() * 0.05)
            for one in tasks:
                one.cancel()  # in the middle of anything
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in done} <= {asyncio.CancelledError, type(None)}
            if dice.random() < 0.2:
                semaphore.resize_sync(dice.randint(1, most_value))

    def thread(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            with (
                contextlib.suppress(AcquireTimeout),
                semaphore.cm(timeout=dice.choice([None, 0.001])),
                counted(1),
            ):
                time.sleep(0)

    threads = [threading.Thread(target=asyncio.run, args=[chaos(seed * 100 + n)]) for n in range(4)]
    threads += [threading.Thread(target=thread, args=[seed * 100 + 50 + n]) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not overrun
    check(semaphore)
    assert semaphore.stats_sync() == SemaphoreStats(0, semaphore.value)
