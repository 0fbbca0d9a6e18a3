"""Who enters first: in the order of the grants, and within one loop no newcomer before them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slotwise import Semaphore
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]
Enter = Callable[[Semaphore, str, list[str]], Awaitable[None]]


async def block(semaphore: Semaphore, name: str, entered: list[str]) -> None:
    async with semaphore:
        entered.append(name)


async def cm(semaphore: Semaphore, name: str, entered: list[str]) -> None:
    async with semaphore.cm():
        entered.append(name)


async def acquire(semaphore: Semaphore, name: str, entered: list[str]) -> None:
    acquired = await semaphore.acquire()
    entered.append(name)
    await semaphore.release(acquired)


async def acquire_with_time_out(semaphore: Semaphore, name: str, entered: list[str]) -> None:
    acquired = await semaphore.acquire(timeout=1000)
    entered.append(name)
    await semaphore.release(acquired)


async def try_acquire(semaphore: Semaphore, name: str, entered: list[str]) -> None:
    acquired = await semaphore.try_acquire()
    assert acquired is not None
    entered.append(name)
    await semaphore.release(acquired)


WAYS = [block, cm, acquire, acquire_with_time_out]


@pytest.mark.parametrize("way", WAYS)
async def test_those_behind_a_cancelled_waiter_are_woken_in_their_order(
    make: Make, way: Enter
) -> None:
    semaphore, speak = make(2), Speak(sync=False)
    entered: list[str] = []
    both = await semaphore.acquire(2)
    tasks = []
    for name in "ABCD":
        tasks.append(asyncio.ensure_future(way(semaphore, name, entered)))
        await speak.waiting(semaphore, len(tasks))
    tasks[0].cancel()
    await speak.waiting(semaphore, 3)
    await semaphore.release(both)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == ["B", "C", "D"]


@pytest.mark.parametrize("newcomer", [*WAYS, try_acquire])
@pytest.mark.parametrize("way", WAYS)
async def test_a_newcomer_does_not_enter_before_a_waiter_that_was_granted_earlier(
    make: Make, way: Enter, newcomer: Enter
) -> None:
    semaphore, speak = make(2), Speak(sync=False)
    entered: list[str] = []
    both = await semaphore.acquire(2)
    waiting = asyncio.ensure_future(way(semaphore, "waiter", entered))
    await speak.waiting(semaphore, 1)
    await semaphore.release(both)  # one slot for the waiter, the other is free
    await newcomer(semaphore, "newcomer", entered)
    await waiting
    assert entered == ["waiter", "newcomer"]


async def test_a_newcomer_that_is_cancelled_while_it_lets_others_go_first_takes_nothing(
    make: Make,
) -> None:
    for way in WAYS:
        semaphore, speak = make(2), Speak(sync=False)
        both = await semaphore.acquire(2)
        entered: list[str] = []
        waiting = asyncio.ensure_future(way(semaphore, "waiter", entered))
        await speak.waiting(semaphore, 1)

        async def newcomer(
            semaphore: Semaphore = semaphore, both: object = both, way: Enter = way
        ) -> None:
            await semaphore.release(both)  # type: ignore[arg-type]
            await way(semaphore, "newcomer", [])

        task = asyncio.create_task(newcomer())
        while not task.done():
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if "waiter" not in entered:  # cancelled before it had released
            await semaphore.release(both)
        await waiting
        await speak.held(semaphore, 0)
