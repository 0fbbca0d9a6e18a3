"""Rates of several real processes: taken together with slots, and kept by what dies.

What rates do in one process is in `tests/tiers/test_rates.py`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests import _fresh_processes
from tests._inside import tiers_of
from tests.processes._inside import limit_of
from tests.redis._client import ROOT, Worker

from slotwise import Rate, RateLimit, Tier, Tiers
from slotwise.processes import _wakeups
from slotwise.testing import FakeClock, settle

SLOW = Rate(1, per=3600, burst=5)  # nothing comes back while a test runs
TIERS = (Tier("tokens", rate=SLOW), Tier("all", 1))
WRITTEN = [("tokens", [1, 3600, 5]), ("all", 1)]


@pytest.fixture
def url(directory: Path) -> str:
    return f"process://{directory}"


@pytest.fixture
def limits(url: str) -> Tiers:
    return Tiers(*TIERS, url=url, name="t")


@pytest.fixture
def worker(url: str) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as running:

        def start(tokens: int, tiers: Any = WRITTEN, **options: Any) -> Worker:
            options = {"name": "t", "url": url, "costs": {tiers[0][0]: tokens}, **options}
            module = "tests.processes._worker"
            return running.enter_context(Worker(module=module, tiers=tiers, **options))

        yield start


def elsewhere(url: str, code: str) -> str:
    """Run a few lines in another process, which has the tiers; what it prints."""
    program = f"""
import sys
from slotwise import Rate, RateLimit, Tier, Tiers
SLOW = Rate(1, per=3600, burst=5)
limits = Tiers(Tier("tokens", rate=SLOW), Tier("all", 1), url={url!r}, name="t")
alone = RateLimit("alone", SLOW, url={url!r})
{code}
"""
    arguments = [sys.executable, "-c", program]
    done = _fresh_processes.run(
        arguments, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def level(limits: Tiers) -> Any:
    return pytest.approx((await limits.stats())["tokens"].level, abs=0.1)


async def until_waiting(limits: Tiers, count: int) -> None:
    async with asyncio.timeout(30):
        while len(await limits.waiters()) != count:
            await asyncio.sleep(0.005)


async def test_what_another_process_took_is_seen_and_settled_here(limits, worker):
    other = worker(3)
    other.tell("acquire")
    assert other.hears().startswith("acquired 1 ")
    assert await level(limits) == 2
    other.tell("id")
    acquisition_id = other.hears()
    await limits.settle(acquisition_id, tokens=1)
    assert await level(limits) == 4
    other.tell("release")
    assert other.hears() == "released True"
    limits.settle_sync(acquisition_id, tokens=4)
    assert await level(limits) == 1
    with pytest.raises(LookupError, match="too long ago"):
        await limits.settle("p1-1", tokens=4)


async def test_a_killed_holder_keeps_what_it_took_and_gives_its_slots_back(limits, worker):
    holder = worker(3)
    holder.tell("acquire")
    assert holder.hears().startswith("acquired 1 ")
    waiting = asyncio.create_task(limits.acquire(tokens=2))
    await until_waiting(limits, 1)
    holder.kill()
    async with asyncio.timeout(30):
        acquired = await waiting
    assert await level(limits) == 0
    await limits.release(acquired)


@pytest.mark.parametrize("alone", [False, True])
async def test_what_is_granted_to_a_dead_process_goes_back(url, limits, worker, alone):
    """Whether its death is noticed before the grant or by it, and whether anything is held."""
    if alone:
        limit = RateLimit("t", SLOW, url=url)
        tiers, waiter = tiers_of(limit), worker(5, [("cost", [1, 3600, 5])])
        await limit.acquire(cost=1)
    else:
        tiers, waiter = limits, worker(4)
        held = await limits.acquire(tokens=1)
    waiter.tell("acquire")
    await until_waiting(tiers, 1)
    waiter.kill()
    if alone:
        await tiers.refill("cost")
    else:
        await limits.release(held)
    await until_waiting(tiers, 0)
    [tier, *_] = (await tiers.stats()).values()
    assert tier.level == pytest.approx(5 if alone else 4, abs=0.1)
    assert await tiers.holders() == []


async def test_those_who_wait_for_time_learn_when_that_becomes_sooner(url, limits, monkeypatch):
    """By a process that has nothing there itself, so that nobody else has an alarm for it."""
    monkeypatch.setattr(_wakeups, "_WAITING", 600.0)
    await limits.release(await limits.acquire(tokens=5))
    waiting = asyncio.create_task(limits.acquire(tokens=5))
    await until_waiting(limits, 1)
    elsewhere(url, "limits.resize_sync('tokens', Rate(50, per=1, burst=5))")
    async with asyncio.timeout(30):
        acquired = await waiting
    assert acquired.waited > 0
    await limits.release(acquired)


async def test_a_grant_of_a_rate_alone_is_found_in_a_new_snapshot(url):
    limit = RateLimit("alone", SLOW, url=url)
    first = await limit.acquire(cost=5)
    waiting = asyncio.create_task(limit.acquire(cost=2))
    await until_waiting(tiers_of(limit), 1)
    compacting = (
        "from slotwise.processes import _file_journal; _file_journal._COMPACT_AFTER = -1 << 20"
    )
    elsewhere(url, f"{compacting}; alone._tiers.refill_sync('cost')")
    async with asyncio.timeout(30):
        acquired = await waiting
    assert acquired.fencing_token > first.fencing_token
    assert acquired.waited > 0
    await limit.settle(acquired, 1)
    assert (await limit.level()).level == pytest.approx(4, abs=0.1)


async def test_a_file_stays_until_its_buckets_are_full_and_nothing_can_be_settled(url, directory):
    with FakeClock() as clock:
        limit = RateLimit("brief", Rate(1, per=100, burst=2), url=url)
        await limit.acquire(cost=2)
        [file] = directory.glob("*.tiers")
        sweeper = limit_of(limit).journal.process
        for seconds, stays in ((0, True), (199, True), (2, False)):
            clock.advance(seconds)
            await settle()
            os.utime(file, (0, 0))
            sweeper._scan = None
            sweeper.sweep(own=False)
            assert file.exists() is stays


STORM = """
import random
dice = random.Random(SEED)
from slotwise import AcquireTimeout
tokens = Tier("tokens", rate=Rate(1, per=3600, burst=100_000))
storm = Tiers(tokens, Tier("all", 2), url=URL, name="s")
done = total = 0
while done < 40:
    try:
        with storm.cm(tokens=dice.randint(1, 20), timeout=dice.choice([0.0005, None])) as acquired:
            done += 1
            actual = dice.randint(0, 40)
            acquired.settle(tokens=actual)
            total += actual
    except AcquireTimeout:
        pass
print(total)
"""


@pytest.mark.soak
async def test_what_many_processes_take_and_settle_adds_up(url):
    codes = [STORM.replace("SEED", str(seed)).replace("URL", repr(url)) for seed in range(3)]
    async with asyncio.timeout(120):
        totals = await asyncio.gather(*(asyncio.to_thread(elsewhere, url, code) for code in codes))
    tiers = (Tier("tokens", rate=Rate(1, per=3600, burst=100_000)), Tier("all", 2))
    storm = Tiers(*tiers, url=url, name="s")
    assert await level(storm) == 100_000 - sum(map(int, totals))
    assert await storm.holders() == await storm.waiters() == []
