"""Processes that are killed, stopped or forked: real ones, with real signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.redis._client import Worker

from slotwise import SemaphoreStats
from slotwise.processes import ProcessSemaphore

Make = Callable[..., ProcessSemaphore]
Start = Callable[..., Worker]


HANG = 30  # seconds after which something never happens


async def until_waiting(semaphore: ProcessSemaphore, count: int) -> None:
    async with asyncio.timeout(HANG):
        while (await semaphore.stats()).waiting != count:
            await asyncio.sleep(0.001)


def holding(worker: Worker) -> Worker:
    worker.tell("acquire")
    assert worker.hears().startswith("acquired")
    return worker


@pytest.mark.soak
async def test_a_hand_over_does_not_depend_on_polling(make: Make, worker: Start) -> None:
    """By polling once a second alone, this would take minutes."""
    semaphore = make()
    other = worker()
    async with asyncio.timeout(HANG):
        for _ in range(100):
            acquired = await semaphore.acquire()
            other.tell("acquire")
            await until_waiting(semaphore, 1)
            mine = asyncio.create_task(semaphore.acquire())
            await until_waiting(semaphore, 2)
            await semaphore.release(acquired)
            assert other.hears().startswith("acquired")
            other.tell("release")
            assert other.hears() == "released True"
            await semaphore.release(await mine)


@pytest.mark.soak
async def test_a_death_that_the_kernel_does_not_report_is_noticed(
    make: Make, worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older kernel, or a process in another namespace."""

    def no_such_process(pid: int, flags: int = 0) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "pidfd_open", no_such_process, raising=False)
    semaphore = make()
    holder = holding(worker())
    waiting = asyncio.create_task(semaphore.acquire())
    await until_waiting(semaphore, 1)
    holder.kill()
    await asyncio.wait_for(waiting, HANG)


async def test_a_killed_holder_frees_its_slot_for_a_waiter(make: Make, worker: Start) -> None:
    semaphore = make()
    holder = holding(worker())
    waiting = asyncio.create_task(semaphore.acquire())
    await until_waiting(semaphore, 1)
    holder.kill()
    await asyncio.wait_for(waiting, HANG)


async def test_a_killed_holder_is_gone_at_once_for_newcomers(make: Make, worker: Start) -> None:
    semaphore = make()
    holding(worker()).kill()
    assert await semaphore.stats() == SemaphoreStats(0, 1)
    holding(worker()).kill()
    assert await semaphore.holders() == []
    holding(worker()).kill()
    assert not await semaphore.locked()
    holding(worker()).kill()
    assert await semaphore.try_acquire() is not None


async def test_a_dead_holder_does_not_block_another_value(make: Make, worker: Start) -> None:
    holding(worker(2)).kill()
    await make(3).acquire()


async def test_the_death_of_the_first_waiter_serves_the_second(make: Make, worker: Start) -> None:
    semaphore = make(2)
    held = [await semaphore.acquire() for _ in range(2)]
    first = worker(2)
    first.tell("acquire")
    await until_waiting(semaphore, 1)
    second = asyncio.create_task(semaphore.acquire())
    await until_waiting(semaphore, 2)
    first.kill()
    await semaphore.release(held[0])
    await asyncio.wait_for(second, HANG)


async def test_the_death_of_a_waiter_at_the_head_is_noticed_by_those_behind_it(
    make: Make, worker: Start
) -> None:
    semaphore = make(2)
    await semaphore.acquire()
    wide = worker(2)
    wide.tell("acquire inf 2")
    await until_waiting(semaphore, 1)
    # One slot is free, but nobody passes the waiter for two.
    narrow = asyncio.create_task(semaphore.acquire())
    await until_waiting(semaphore, 2)
    wide.kill()
    await asyncio.wait_for(narrow, HANG)


async def test_a_child_does_not_keep_the_slot_of_its_killed_parent(
    make: Make, worker: Start
) -> None:
    semaphore = make()
    parent = holding(worker())
    parent.tell("fork")
    child = int(parent.hears().split()[1])
    try:
        waiting = asyncio.create_task(semaphore.acquire())
        await until_waiting(semaphore, 1)
        os.kill(parent.process.pid, signal.SIGKILL)
        parent.process.wait(HANG)
        await asyncio.wait_for(waiting, HANG)
        os.kill(child, 0)  # it is still alive
    finally:
        os.kill(child, signal.SIGKILL)


async def test_a_child_holds_nothing_and_frees_nothing_of_its_parents(
    make: Make, worker: Start
) -> None:
    parent = holding(worker())
    parent.tell("child-acquire")
    assert parent.hears() == "child None"
    assert parent.hears() == "ended"
    assert await make().locked()
    parent.tell("release")
    assert parent.hears() == "released True"


async def test_a_child_has_an_identity_of_its_own(make: Make, worker: Start) -> None:
    parent = holding(worker(2))
    parent.tell("child-acquire")
    assert parent.hears() == "child 2"
    assert parent.hears() == "ended"
    # The child's slot was freed when it ended, the parent's was not.
    assert await make(2).stats() == SemaphoreStats(1, 2)


async def test_a_process_that_becomes_another_program_holds_nothing(
    make: Make, worker: Start
) -> None:
    holder = holding(worker())
    holder.tell("exec")
    assert holder.hears() == "executed"  # with the pid that is in the file
    assert await make().stats() == SemaphoreStats(0, 1)


async def test_a_stopped_holder_keeps_its_slot(make: Make, worker: Start) -> None:
    semaphore = make()
    holder = holding(worker())
    holder.signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        await semaphore.acquire(timeout=2.5)
    assert await semaphore.stats() == SemaphoreStats(1, 1)
    holder.signal(signal.SIGCONT)
    holder.tell("release")
    assert holder.hears() == "released True"


async def test_the_ttl_of_a_stopped_holder_ends_for_waiters(make: Make, worker: Start) -> None:
    semaphore = make()
    holder = holding(worker(ttl=1))
    holder.signal(signal.SIGSTOP)
    await asyncio.wait_for(semaphore.acquire(), HANG)
    holder.signal(signal.SIGCONT)
    assert holder.hears() == "lost its ttl of 1 s ended"


async def test_a_kicked_holder_in_another_process_is_told(make: Make, worker: Start) -> None:
    semaphore = make()
    holder = holding(worker())
    waiting = asyncio.create_task(semaphore.acquire())
    await until_waiting(semaphore, 1)
    [seen] = await semaphore.holders()
    assert (seen.pid, seen.label, seen.slot_number) == (holder.process.pid, "worker", 1)
    assert await semaphore.kick(seen.acquisition_id) is True
    await asyncio.wait_for(waiting, HANG)
    assert holder.hears() == "lost it was kicked"
    assert await semaphore.kick(seen.acquisition_id) is False


async def test_what_another_process_released_is_lost(make: Make, worker: Start) -> None:
    holder = holding(worker())
    holder.tell("id")
    assert await make().release(holder.hears()) is True
    assert holder.hears() == "lost somebody else released it"


async def test_a_resize_and_a_close_reach_other_processes(make: Make, worker: Start) -> None:
    semaphore = make()
    held = await semaphore.acquire()
    other = worker()
    other.tell("acquire")
    await until_waiting(semaphore, 1)
    await semaphore.resize(2)
    assert other.hears().startswith("acquired 2")
    other.tell("acquire")
    await until_waiting(semaphore, 1)
    await semaphore.close_everywhere("late")
    assert other.hears() == "failed SemaphoreClosed 's' is closed everywhere: late"
    other.tell("release")
    assert other.hears() == "released True"
    await semaphore.release(held)
    other.tell("acquire")
    assert other.hears() == "failed SemaphoreClosed 's' is closed everywhere: late"
    await semaphore.reopen()
    other.tell("acquire")
    assert other.hears().startswith("acquired 1")


def test_fifos_of_killed_processes_are_removed(worker: Start, directory: Path) -> None:
    holding(worker()).kill()
    [left] = directory.glob("wake/*")
    holding(worker())
    assert left not in [*directory.glob("wake/*")]
    assert len([*directory.glob("wake/*")]) == 1
