"""Who enters first: in the order of the grants, and within one loop no newcomer before them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

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


# ------------------------------------------------------------------- head starts


async def served_in_order(semaphore: Any, speak: Speak, *asked: tuple[str, dict[str, Any]]) -> Any:
    """In which order those are served who ask one after the other, while a slot is held."""
    order: list[str] = []
    holder = await speak.acquire(semaphore)

    async def ask(who: str, options: dict[str, Any]) -> None:
        acquired = await speak.acquire(semaphore, **options)
        order.append(who)
        await speak.release(semaphore, acquired)

    tasks = []
    for count, (who, options) in enumerate(asked, 1):
        tasks.append(asyncio.create_task(ask(who, options)))
        await speak.waiting(semaphore, count)
    await speak.release(semaphore, holder)
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
    return order


async def test_a_head_start_passes_those_who_have_waited_for_less(make: Make, speak: Speak) -> None:
    order = await served_in_order(
        make(1),
        speak,
        ("first", {}),
        ("patient", {"priority": -3600}),
        ("urgent", {"priority": 3600}),
        ("most urgent", {"priority": 7200.5, "label": "x"}),
        ("later", {}),
    )
    assert order == ["most urgent", "urgent", "first", "later", "patient"]


async def test_a_negative_head_start_pushes_nobody_back_who_comes_later(
    make: Make, speak: Speak
) -> None:
    """The last ticket is kept apart: a place in the future is not what others come behind."""
    semaphore = make(1)
    for _ in range(2):  # also after the queue was empty
        order = await served_in_order(
            semaphore,
            speak,
            ("most patient", {"priority": -7200}),
            ("patient", {"priority": -3600}),
            ("first", {}),
            ("second", {}),
            ("third", {"priority": -0.000001}),
        )
        assert order == ["first", "second", "third", "patient", "most patient"]


async def test_several_slots_have_head_starts_and_nobody_passes_the_first_waiter(
    make: Make, speak: Speak
) -> None:
    semaphore = make(3)
    held = [await speak.acquire(semaphore) for _ in range(2)]
    large = asyncio.create_task(speak.acquire(semaphore, 3))
    await speak.waiting(semaphore, 1)
    assert await speak.try_acquire(semaphore) is None
    # It comes before the large one, and fits, so it need not wait.
    urgent = await speak.try_acquire(semaphore, priority=60)
    assert urgent is not None
    small = asyncio.create_task(speak.acquire(semaphore, 2, priority=30))
    await speak.waiting(semaphore, 2)
    for acquired in (urgent, held.pop()):
        await speak.release(semaphore, acquired)
    async with asyncio.timeout(60):
        first = await small
        assert not large.done()
        for acquired in (first, *held):
            await speak.release(semaphore, acquired)
        await speak.release(semaphore, await large)
    assert not await speak.locked(semaphore)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", None, True])
async def test_a_wrong_priority_is_an_error_and_takes_nothing(
    make: Make, speak: Speak, wrong: Any
) -> None:
    semaphore = make(1)
    with pytest.raises((TypeError, ValueError), match="priority"):
        await speak.acquire(semaphore, priority=wrong)
    with pytest.raises((TypeError, ValueError), match="priority"):
        await speak.try_acquire(semaphore, priority=wrong)
    assert not await speak.locked(semaphore)
