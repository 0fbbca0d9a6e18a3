"""Tiers of several real processes: what one does, another sees; what dies, is freed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests import _fresh_processes
from tests._inside import backend_of
from tests.redis._client import ROOT, Worker

from slotwise import Tier, Tiers
from slotwise.processes import ProcessSemaphore

TIERS = (Tier("tenant", 1, keyed=True), Tier("all", 2))


@pytest.fixture
def limits(directory: Path) -> Tiers:
    return make(directory)


def make(directory: Path, *tiers: Tier, **options: Any) -> Tiers:
    return Tiers(*(tiers or TIERS), url=f"process://{directory}", **{"name": "t", **options})


@pytest.fixture
def worker(directory: Path) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as running:

        def start(tenant: str, tiers: tuple[Tier, ...] = TIERS, **options: Any) -> Worker:
            written = [(tier.name, tier.value, tier.keyed) for tier in tiers]
            options = {"name": "t", "url": f"process://{directory}", **options}
            keys = {"tenant": tenant}
            module = "tests.processes._worker"
            return running.enter_context(Worker(module=module, tiers=written, keys=keys, **options))

        yield start


async def until_waiting(limits: Tiers, count: int) -> None:
    async with asyncio.timeout(30):
        while len(await limits.waiters()) != count:
            await asyncio.sleep(0.005)


async def test_a_release_in_another_process_wakes_a_waiter_here(limits, worker):
    other = worker("acme")
    other.tell("acquire")
    assert other.hears().startswith("acquired 1 ")
    assert limits.try_acquire_sync(tenant="acme") is None
    async with limits.cm(tenant="else", timeout=0) as acquired:
        assert acquired.slot_number == 2
    [holder] = await limits.holders()
    assert (holder.pid, holder.label) == (other.process.pid, "worker")
    assert holder.keys == {"tenant": "acme"}
    waiting = asyncio.create_task(limits.acquire(tenant="acme"))
    await until_waiting(limits, 1)
    other.tell("release")
    assert other.hears() == "released True"
    async with asyncio.timeout(30):
        await limits.release(await waiting)
    assert all(tier.active == 0 for tier in (await limits.stats()).values())


async def test_a_killed_holder_frees_every_tier_and_a_killed_waiter_is_passed(limits, worker):
    holder, waiter = worker("acme"), worker("acme")
    holder.tell("acquire")
    assert holder.hears().startswith("acquired")
    waiter.tell("acquire")
    await until_waiting(limits, 1)
    here = asyncio.create_task(limits.acquire(tenant="acme"))
    await until_waiting(limits, 2)
    waiter.kill()
    holder.kill()
    async with asyncio.timeout(30):
        acquired = await here
    stats = await limits.stats()
    assert (stats["tenant"].keys["acme"].active, stats["all"].active) == (1, 1)
    assert stats["all"].waiting == 0
    await limits.release(acquired)


async def test_the_value_of_a_key_in_use_is_the_one_that_came_first(directory):
    first = make(directory, Tier("tenant", lambda _: 1, keyed=True), Tier("all", 9))
    second = make(directory, Tier("tenant", lambda _: 2, keyed=True), Tier("all", 9))
    held = await first.acquire(tenant="a")
    assert await second.try_acquire(tenant="a") is None
    await first.release(held)
    both = [await second.acquire(tenant="a", timeout=0) for _ in range(2)]
    assert await first.try_acquire(tenant="a") is None
    for acquired in both:
        await second.release(acquired)


async def test_a_semaphore_of_the_same_name_is_another_limit(directory, limits):
    semaphore = ProcessSemaphore(value=1, name="t", directory=directory)
    async with semaphore, limits.cm(tenant="a"), limits.cm(tenant="b"):
        assert (await semaphore.stats()).acquired_slots == 1
        assert (await limits.stats())["all"].active == 2
    assert ProcessSemaphore.names(directory) == ["t"]


async def test_keys_that_come_and_go_leave_the_file_as_it_was(directory):
    limits = make(directory, Tier("tenant", lambda _: 1, keyed=True), Tier("all", 0))
    held = await limits.acquire(tenant="somebody who stays")
    for number in range(400):
        async with limits.cm(tenant=f"{number} and a long name" * 5):
            pass
    [file] = directory.glob("*.tiers")
    assert file.stat().st_size <= 64 * 1024
    state = backend_of(limits).state
    assert [*state.tiers[0].nodes] == ["somebody who stays"]
    await limits.release(held)


STORM = """
import os, random, sys
from pathlib import Path
from slotwise import Tier, Tiers, AcquireTimeout

directory, seed = Path(sys.argv[1]), int(sys.argv[2])
dice = random.Random(seed)
values = {"tenant": 1, "model": 2, "all": 3}
limits = Tiers(
    Tier("tenant", 1, keyed=True), Tier("model", 2, keyed=True), Tier("all", 3),
    url=f"process://{directory}", name="t")
done = 0
while done < 40:
    keys = {"tenant": dice.choice("abcd"), "model": dice.choice("xy")}
    slots = {"model": dice.choice([1, 1, 2])}
    try:
        with limits.cm(slots, timeout=dice.choice([0.001, None]), **keys):
            done += 1
            inside = []
            for tier, key in (*keys.items(), ("all", "")):
                folder = directory.parent / "inside" / f"{tier}{key}"
                folder.mkdir(parents=True, exist_ok=True)
                for number in range(slots.get(tier, 1)):
                    inside.append(folder / f"{os.getpid()}.{number}")
                    inside[-1].touch()
                assert len([*folder.iterdir()]) <= values[tier], (tier, key)
            for path in inside:
                path.unlink()
    except AcquireTimeout:
        pass
"""


def test_processes_overshoot_no_tier_and_all_come_to_their_end(directory, limits):
    running = [
        _fresh_processes.Popen([sys.executable, "-c", STORM, str(directory), str(seed)], cwd=ROOT)
        for seed in range(3)
    ]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert limits.holders_sync() == limits.waiters_sync() == []
