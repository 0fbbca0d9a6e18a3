"""Head starts on the semaphores of every driver: who is passed, and who never is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from slotwise import Semaphore
from tests.contract.conftest import Speak

Make = Callable[..., Semaphore]


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


async def test_one_with_a_head_start_can_be_cancelled(make: Make, speak: Speak) -> None:
    semaphore = make(1)
    holder = await semaphore.acquire()
    urgent = asyncio.create_task(semaphore.acquire(priority=60))
    await speak.waiting(semaphore, 1)
    other = asyncio.create_task(semaphore.acquire())
    await speak.waiting(semaphore, 2)
    urgent.cancel()
    await speak.waiting(semaphore, 1)
    await semaphore.release(holder)
    async with asyncio.timeout(60):
        await semaphore.release(await other)
    assert not await speak.locked(semaphore)


async def test_waiters_are_listed_in_their_turns_and_since_they_came(
    make: Make, speak: Speak
) -> None:
    semaphore = make(1)
    holder = await semaphore.acquire()
    tasks = []
    for count, (label, priority) in enumerate((("a", 0), ("b", -3600), ("c", 3600)), 1):
        tasks.append(asyncio.create_task(semaphore.acquire(label=label, priority=priority)))
        await speak.waiting(semaphore, count)
    waiters = await speak.waiters(semaphore)
    assert [each.label for each in waiters] == ["c", "a", "b"]
    since = {each.label: each.since for each in waiters}
    assert since["a"] <= since["b"] <= since["c"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await semaphore.release(holder)


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
