"""The order in which waiters of this process are woken, whoever grants them their slots."""

from __future__ import annotations

import asyncio
import threading

from slotwise import MemorySemaphore, Tier, Tiers
from slotwise.testing import settle


async def test_a_grant_by_a_thread_is_run_before_a_later_one_of_the_loop() -> None:
    for _ in range(20):
        semaphore = MemorySemaphore(2)
        first, second = await semaphore.acquire(), await semaphore.acquire()
        entered: list[str] = []

        async def visit(name: str, semaphore: MemorySemaphore = semaphore) -> None:
            async with semaphore:
                entered.append(name)  # noqa: B023

        tasks = [asyncio.create_task(visit(name)) for name in "BC"]
        await settle()
        # Joined in here, so that the loop can't look meanwhile: the grant is under way.
        thread = threading.Thread(target=semaphore.release_sync, args=(first,))
        thread.start()
        thread.join()
        await semaphore.release(second)
        await asyncio.gather(*tasks)
        assert entered == ["B", "C"]


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
    assert not semaphore._tracker.woken


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
