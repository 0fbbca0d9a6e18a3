"""Keys of a rate that are seen once: what each costs, and what is left when they are full.

The clock is ours: the keys come within one `per`, and then that passes.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
import tracemalloc
from statistics import median

from slotwise import Rate, Tier, Tiers
from slotwise.testing import FakeClock

IDLE = 1_000  # keys that may be remembered
PER = 60.0


def many_keys_of_a_rate(count: int, url: str | None) -> list[tuple[str, bool]]:
    """Each key once: the time per key must not grow, and the memory must come back."""
    part = count // 10

    async def work(clock: FakeClock, url: str | None) -> tuple[list[float], int, int, int]:
        user = Tier("user", rate=Rate(10, per=PER), keyed=True)
        name = None if url is None else "many"
        tiers = Tiers(user, Tier("all", 10), url=url, name=name, max_idle_keys=IDLE)
        for n in range(2 * IDLE):  # so that as many are idle as may be
            await pair(tiers, f"early-{n}")
        clock.advance(2 * PER)
        await pair(tiers, "early")
        gc.collect()
        bound = tracemalloc.get_traced_memory()[0]
        costs = []
        for tenth in range(10):
            started = time.process_time()
            for n in range(tenth * part, (tenth + 1) * part):
                await pair(tiers, f"user-{n}")
            costs.append((time.process_time() - started) / part)
        most = tracemalloc.get_traced_memory()[0]
        clock.advance(2 * PER)
        for _ in range(count // 50):  # what is full is forgotten a few at a time
            await pair(tiers, "late")
            clock.advance(PER / 10)
        gc.collect()
        return costs, bound, most, tracemalloc.get_traced_memory()[0]

    async def pair(tiers: Tiers, user: str) -> None:
        async with tiers.cm(user=user):
            pass

    tracemalloc.start()
    with tempfile.TemporaryDirectory() as directory, FakeClock() as clock:
        where = None if url is None else f"{url}{directory}"
        costs, bound, most, end = asyncio.run(work(clock, where))
    tracemalloc.stop()
    growth = median(costs[5:]) / median(costs[:5])
    left = (end - bound) / count
    title = f"{count:,} keys of a rate once each, {url or 'memory://'}"
    linear = f"{title}: last half / first half {growth:.2f} (bar 1.5)"
    back = (
        f"{title}: {(most - bound) / count:.0f} bytes a key, {left:.1f} left when they are full"
        " (bar 16)"
    )
    print(f"\n{linear}\n{back}")
    return [(linear, growth <= 1.5), (back, left <= 16)]
