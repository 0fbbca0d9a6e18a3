"""An adaptive MemorySemaphore: how holds end, what moves the value, and who may share a name."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.invariants import check
from tests.memory._inside import ledger_of

import slotwise
from slotwise import Adaptive, Errors, Latency, MemorySemaphore, Tier, Tiers
from slotwise.instrumentation import add_hook, remove_hook
from slotwise.testing import FakeClock

ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


@pytest.fixture
def clock() -> Any:
    with FakeClock() as clock:
        yield clock


def counted(limit: MemorySemaphore) -> list[str]:
    """The outcomes that are counted from now on."""
    node = ledger_of(limit).node()
    seen: list[str] = []
    adaptation = node.adaptation

    class Spy(type(adaptation)):  # type: ignore[misc]
        __slots__ = ()

        def end(self, now_us: int, held_us: int, outcome: Any, *more: int) -> bool:
            seen.append(outcome)
            return bool(super().end(now_us, held_us, outcome, *more))

    adaptation.__class__ = Spy
    return seen


async def test_an_acquisition_ends_as_the_block_does() -> None:
    limit = MemorySemaphore(ERRORS)
    seen = counted(limit)
    async with limit.cm():
        pass
    async with limit:
        pass
    for error in (TimeoutError, ConnectionResetError, ValueError, asyncio.CancelledError):
        with pytest.raises(error):
            async with limit.cm():
                raise error
    async with limit.cm() as acquired:
        acquired.dropped(retry_after=1)
    async with limit.cm() as acquired:
        acquired.ignored()
    held = await limit.acquire()
    await limit.release(held.acquisition_id)
    expected = ["ok", "ok", "dropped", "dropped", "ignored", "ignored", "dropped", "ignored", "ok"]
    assert seen == expected


async def test_the_value_moves_and_waiters_get_what_it_gained(clock: FakeClock) -> None:
    limit = MemorySemaphore(Adaptive(2, 2, 10, algorithm=Errors()))
    held = [await limit.acquire() for _ in range(2)]
    waiting = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    for _ in range(2):  # two successes at a value of two
        clock.advance(1)
        await limit.release(held.pop())
        held.append(await limit.acquire(timeout=0)) if not held else None
    assert limit.value == 3
    assert await waiting
    [change] = await limit.changes()
    assert (change.old, change.new, change.reason) == (2, 3, "2 calls without a drop")
    assert (await limit.stats()).max_slots == 3


async def test_it_finds_the_knee_of_a_service_in_virtual_time(clock: FakeClock) -> None:
    """Through the real semaphore: 8 calls at once take 0.1 s each, more only wait there."""
    limit = MemorySemaphore(Adaptive(30, 2, 100))
    free_at = [0.0] * 8
    held: list[tuple[float, Any]] = []
    now = 0.0
    for _ in range(12_000):
        while (acquired := limit.try_acquire_sync()) is not None:
            worker = min(range(8), key=free_at.__getitem__)
            free_at[worker] = max(free_at[worker], now) + 0.1
            held.append((free_at[worker], acquired))
        held.sort(key=lambda each: each[0])
        end, acquired = held.pop(0)
        clock.advance(end - now)
        now = end
        limit.release_sync(acquired)
    assert 6 <= limit.value <= 12
    assert all(change.old != change.new for change in limit.changes_sync())


def test_what_was_learnt_outlives_an_idle_time_of_less_than_an_hour(clock: FakeClock) -> None:
    limit = MemorySemaphore(ERRORS, name="learnt")
    limit.release_sync(limit.acquire_sync(), outcome="dropped")
    clock.advance(3000)
    assert MemorySemaphore(ERRORS, name="learnt").value == 7
    clock.advance(1000)
    del limit
    assert MemorySemaphore(ERRORS, name="learnt").value == 10
    MemorySemaphore(ERRORS, name="learnt").freeze_sync(5)
    clock.advance(10_000)
    assert MemorySemaphore(ERRORS, name="learnt").value == 5


@pytest.mark.soak
@pytest.mark.parametrize("options", [ERRORS, Adaptive(5, 1, 12, algorithm=Latency(0.01, 5))])
def test_threads_and_loops_share_it_while_its_value_moves(options: Adaptive) -> None:
    limit = MemorySemaphore(options)
    tiers = Tiers(Tier("key", options, keyed=True), Tier("all", options))

    def chosen(dice: random.Random) -> Any:
        return limit.cm() if dice.random() < 0.5 else tiers.cm(key=dice.choice("ab"))

    def thread(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(100):
            with contextlib.suppress(TimeoutError), chosen(dice) as acquired:
                if dice.random() < 0.05:
                    acquired.dropped(retry_after=dice.choice([None, 0.001]))
                if dice.random() < 0.02:
                    raise TimeoutError
            if dice.random() < 0.01:
                limit.freeze_sync(dice.choice([3, 8]))
            if dice.random() < 0.05:
                limit.thaw_sync()

    async def task(dice: random.Random) -> None:
        for _ in range(50):
            async with chosen(dice) as acquired:
                await asyncio.sleep(0)
                if dice.random() < 0.05:
                    acquired.dropped()

    async def loop(seed: int) -> None:
        dice = random.Random(seed)
        await asyncio.gather(*[task(dice) for _ in range(4)])

    threads = [threading.Thread(target=thread, args=[seed]) for seed in range(3)]
    threads += [threading.Thread(target=asyncio.run, args=[loop(seed)]) for seed in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(100)
        assert not each.is_alive()
    stats = limit.stats_sync()
    assert (stats.acquired_slots, stats.waiting) == (0, 0)
    assert tiers.stats_sync()["all"].active == 0
    check(ledger_of(limit))


@pytest.mark.parametrize("url", ["memory", "process"])
async def test_hooks_hear_of_each_change_once_and_of_no_probe(
    url: str, clock: FakeClock, tmp_path: Path
) -> None:
    options = Adaptive(6, 2, 40, algorithm=Latency(0.1, 5))
    where = "memory://" if url == "memory" else f"process://{tmp_path}/slots"
    limit = slotwise.semaphore(f"probed by {url}", options, where)
    seen: list[Any] = []
    limits = set()
    add_hook(seen.append)
    try:
        for _ in range(60):
            held = [limit.try_acquire_sync() for _ in range(limit.value)]
            clock.advance(0.05 * max(len(held) / 10, 1))
            for each in held:
                assert each is not None
                limit.release_sync(each)
                limits.add(limit.value)
    finally:
        remove_hook(seen.append)
    told = [(each.value, each.reason) for each in seen if each.kind == "adapted"]
    changes = limit.changes_sync()
    assert told == [(each.new, each.reason) for each in changes]
    assert changes
    assert limits - {each.new for each in changes} - {6}, "there were probes"
