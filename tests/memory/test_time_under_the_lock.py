"""What is made for each of very many claimants is made outside the lock, where it stops nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import AcquireTimeout, MemorySemaphore, SemaphoreClosed
from slotwise._ledger import path_fullness
from slotwise._wait.section import lock
from slotwise.memory import _inspect, _tracker
from slotwise.memory._tracker import Tracker
from slotwise.testing import FakeClock, settle
from slotwise.tiers import Tier, Tiers

pytestmark = pytest.mark.soak


def lock_is_free() -> bool:
    """Whether another thread could have the lock now, or when a third one gives it back."""
    seen: list[bool] = []

    def look() -> None:
        taken = lock.acquire(timeout=20)  # a thread of another test may have it for an instant
        if taken:
            lock.release()
        seen.append(taken)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return seen[0]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str], list[bool]]:
    """Have it noted whether the lock is free whenever a function of that name is called."""

    def note(owner: object, name: str) -> list[bool]:
        free: list[bool] = []
        make: Any = getattr(owner, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            free.append(lock_is_free())
            return make(*args, **kwargs)

        monkeypatch.setattr(owner, name, noting)
        return free

    return note


def waiting(semaphore: MemorySemaphore, slots: int = 1) -> tuple[threading.Thread, list[Exception]]:
    """A thread that waits for slots, and what it gets."""
    failures: list[Exception] = []

    def wait() -> None:
        try:
            semaphore.acquire_sync(slots, timeout=60)
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=wait, daemon=True)
    before = semaphore.stats_sync().waiting
    thread.start()
    while semaphore.stats_sync().waiting == before:
        thread.join(0.001)
    return thread, failures


Made = Callable[[object, str], list[bool]]


def test_holders_and_waiters_are_described_outside_the_lock(made: Made) -> None:
    semaphore = MemorySemaphore(2)
    semaphore.acquire_sync()
    described = made(_inspect, "Claimant")
    with semaphore:
        thread, _ = waiting(semaphore)
        assert len(semaphore.holders_sync()) == 2
        assert len(semaphore.waiters_sync()) == 1
    thread.join(60)
    assert described == [True] * 3


def test_holders_of_tiers_are_described_outside_the_lock(made: Made) -> None:
    tiers = Tiers(Tier("user", 2, keyed=True), Tier("all", 3))
    described = made(_inspect, "Claimant")
    counted = made(path_fullness, "KeyStats")
    with tiers.cm(user="a"):
        assert len(tiers.holders_sync()) == 1
        tiers.stats_sync()
    assert described == [True]
    assert counted
    assert all(counted)


def test_statistics_are_counted_outside_the_lock(made: Made) -> None:
    MemorySemaphore(1, name="counted outside the lock").acquire_sync()
    counted = made(_tracker, "SemaphoreStats")
    assert "counted outside the lock" in MemorySemaphore.get_acquired_stats_sync()
    assert counted
    assert all(counted)


def test_waiters_are_refused_outside_the_lock_when_it_is_closed(made: Made) -> None:
    semaphore = MemorySemaphore(1)
    semaphore.acquire_sync()
    threads = [waiting(semaphore) for _ in range(3)]
    refused = made(Tracker, "closed_error")
    semaphore.close_sync()
    for thread, failures in threads:
        thread.join(60)
        assert [type(failure) for failure in failures] == [SemaphoreClosed]
    assert refused == [True] * 3


def test_blocks_in_the_line_are_refused_outside_the_lock_when_it_is_closed(made: Made) -> None:
    semaphore = MemorySemaphore(1)
    refused = made(_tracker, "_line_grant")

    async def block() -> None:
        async with semaphore:
            pass

    async def close() -> None:
        async with semaphore:
            tasks = [asyncio.create_task(block()) for _ in range(3)]
            await settle()
            await semaphore.close()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [SemaphoreClosed] * 3

    asyncio.run(close())
    assert refused == [True] * 3


def test_waiters_are_refused_outside_the_lock_when_it_shrinks(made: Made) -> None:
    semaphore = MemorySemaphore(2)
    semaphore.acquire_sync()
    thread, failures = waiting(semaphore, slots=2)
    refused = made(Tracker, "_refusal")
    semaphore.resize_sync(1)
    thread.join(60)
    assert [type(failure) for failure in failures] == [ValueError]
    assert refused == [True]


def test_waiters_time_out_outside_the_lock(made: Made) -> None:
    with FakeClock() as clock:
        semaphore = MemorySemaphore(1)
        semaphore.acquire_sync()
        thread, failures = waiting(semaphore)
        timed_out = made(Tracker, "_timeout_error")
        clock.advance(61)
        thread.join(60)
    assert [type(failure) for failure in failures] == [AcquireTimeout]
    assert timed_out == [True]
