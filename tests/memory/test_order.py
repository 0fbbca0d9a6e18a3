"""The order in which waiters of this process are woken, whoever grants them their slots."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests._stdlib import discard
from tests.memory._inside import ledger_of, tracker_of

from slotwise import MemorySemaphore, Tier, Tiers
from slotwise.testing import settle


async def test_a_newcomer_lets_a_waiter_pass_whose_grant_by_a_thread_is_under_way() -> None:
    for way in ("block", "cm"):
        semaphore = MemorySemaphore(2)
        both = await semaphore.acquire(2)
        entered: list[str] = []

        async def visit(name: str, semaphore: MemorySemaphore = semaphore, way: str = way) -> None:
            async with semaphore if way == "block" else semaphore.cm():
                entered.append(name)  # noqa: B023

        waiting = asyncio.create_task(visit("waiter"))
        await settle()
        thread = threading.Thread(target=semaphore.release_sync, args=(both,))
        thread.start()
        thread.join()
        await visit("newcomer")
        await waiting
        assert entered == ["waiter", "newcomer"]


async def test_newcomers_that_wait_for_a_woken_one_enter_in_their_order() -> None:
    semaphore = MemorySemaphore(4)
    everything = await semaphore.acquire(4)
    entered: list[str] = []

    async def visit(name: str) -> None:
        async with semaphore:
            entered.append(name)

    async def leave_and_come_again() -> None:
        await visit("waiter")
        await visit("waiter again")

    waiting = asyncio.create_task(leave_and_come_again())
    await settle()
    await semaphore.release(everything)
    await visit("newcomer")  # which has asked before the waiter comes again
    await waiting
    assert entered == ["waiter", "newcomer", "waiter again"]
    assert not tracker_of(semaphore).woken


async def blocks_in_line(
    semaphore: MemorySemaphore, entered: list[str], names: str
) -> list[asyncio.Task[None]]:
    """Let tasks queue for blocks, in this order."""

    async def visit(name: str) -> None:
        async with semaphore:
            entered.append(name)

    tasks = [asyncio.create_task(visit(name)) for name in names]
    await settle()
    return tasks


async def test_a_newcomer_lets_the_last_of_the_line_pass_that_was_woken() -> None:
    semaphore = MemorySemaphore(2)
    first, second = await semaphore.acquire(), await semaphore.acquire()
    entered: list[str] = []
    [waiter] = await blocks_in_line(semaphore, entered, "w")
    await semaphore.release(first)  # granted to the waiter, which has not run yet
    await semaphore.release(second)
    async with semaphore:
        entered.append("newcomer")
    await waiter
    assert entered == ["w", "newcomer"]


@pytest.mark.parametrize("by", ["the loop", "a thread"])
async def test_a_newcomer_lets_a_woken_one_pass_when_the_last_in_line_was_cancelled(
    by: str,
) -> None:
    semaphore = MemorySemaphore(2)
    first, second = await semaphore.acquire(), await semaphore.acquire()
    entered: list[str] = []
    waiter, gives_up = await blocks_in_line(semaphore, entered, "wx")
    await semaphore.release(first)  # granted to the waiter, which has not run yet
    gives_up.cancel()
    if by == "the loop":
        await semaphore.release(second)
    else:
        thread = threading.Thread(target=semaphore.release_sync, args=(second,))
        thread.start()
        thread.join()  # here, so that the loop can't run meanwhile
    async with semaphore:
        entered.append("newcomer")
    await asyncio.gather(waiter, gives_up, return_exceptions=True)
    assert entered == ["w", "newcomer"]
    await settle()
    assert not tracker_of(semaphore).woken


async def test_a_newcomer_lets_a_woken_one_pass_when_a_line_of_cancelled_ones_was_tidied() -> None:
    semaphore = MemorySemaphore(2)
    first, second = await semaphore.acquire(), await semaphore.acquire()
    entered: list[str] = []
    waiter, *give_up = await blocks_in_line(semaphore, entered, "w" + 100 * "x")

    async def newcomer() -> None:
        assert not ledger_of(semaphore).line, "it was tidied"
        await semaphore.release(second)
        async with semaphore:
            entered.append("newcomer")

    for task in give_up:
        task.cancel()
    coming = asyncio.create_task(newcomer())  # runs after those, and before the waiter
    await semaphore.release(first)
    await asyncio.gather(waiter, coming, *give_up, return_exceptions=True)
    assert entered == ["w", "newcomer"]
    await settle()
    assert not tracker_of(semaphore).woken


def test_a_loop_that_is_closed_before_its_turn_leaves_the_quick_lane_open() -> None:
    semaphore = MemorySemaphore(2)
    loop = asyncio.new_event_loop()

    async def leave_a_turn() -> None:
        first, second = await semaphore.acquire(), await semaphore.acquire()
        tasks = await blocks_in_line(semaphore, [], "wx")
        tasks[1].cancel()
        await semaphore.release(first)
        await semaphore.release(second)
        assert tracker_of(semaphore).woken
        for task in tasks:
            discard(task)
        loop.stop()

    task = loop.create_task(leave_a_turn())
    loop.run_forever()
    del task
    loop.close()
    assert not tracker_of(semaphore).woken


async def test_a_newcomer_to_tiers_does_not_enter_before_a_path_granted_earlier() -> None:
    tiers = Tiers(Tier("tenant", 2, keyed=True), Tier("all", 2))
    held = [await tiers.acquire(tenant="acme") for _ in range(2)]
    entered: list[str] = []

    async def visit(name: str) -> None:
        async with tiers.cm(tenant="acme"):
            entered.append(name)

    async def take(name: str) -> None:
        taken = await tiers.acquire(tenant="acme")
        entered.append(name)
        await tiers.release(taken)

    for newcomer in (visit, take):
        entered.clear()
        waiting = asyncio.create_task(visit("waiter"))
        await settle()
        for one in held:
            await tiers.release(one)
        await newcomer("newcomer")
        await waiting
        assert entered == ["waiter", "newcomer"]
        held = [await tiers.acquire(tenant="acme") for _ in range(2)]
