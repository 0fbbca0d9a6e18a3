"""Waiters are woken in the order of their grants, whichever threads release."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise import MemorySemaphore, ProcessSemaphore, Tier, Tiers

pytestmark = pytest.mark.soak

ROUNDS = 150


class _Line:
    """Tiers with the verbs of a semaphore."""

    def __init__(self, value: int) -> None:
        self._tiers = Tiers(Tier("all", value))

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._tiers, verb)


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", ["memory", "memory tiers", "processes"])
async def test_two_threads_that_release_at_once_do_not_swap_those_they_wake(
    kind: str, tmp_path: Path
) -> None:
    make: dict[str, Callable[[], Any]] = {
        "memory": lambda: MemorySemaphore(2),
        "memory tiers": lambda: _Line(2),
        "processes": lambda: ProcessSemaphore(2, directory=tmp_path / "slots"),
    }
    limit = make[kind]()
    entered: list[int] = []

    async def enter(number: int) -> Any:
        acquired = await limit.acquire()
        entered.append(number)
        return acquired

    held = [limit.try_acquire_sync(), limit.try_acquire_sync()]
    for _ in range(ROUNDS):
        tasks = [asyncio.create_task(enter(number)) for number in range(2)]
        while len(limit.waiters_sync()) < 2:
            await asyncio.sleep(0)
        start = threading.Barrier(2)

        def release(acquired: Any, start: threading.Barrier = start) -> None:
            start.wait(30)
            limit.release_sync(acquired)

        threads = [threading.Thread(target=release, args=(each,)) for each in held]
        for thread in threads:
            thread.start()
        held = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        for thread in threads:
            thread.join(30)
        assert entered == [0, 1]
        entered.clear()
