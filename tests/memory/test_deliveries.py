"""How wake-ups reach other threads: nobody waits for one who delivers, and none is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.memory._inside import tracker_of

from slotwise import MemorySemaphore
from slotwise._ledger.slots import QUICK_LANE
from slotwise.testing import settle

pytestmark = pytest.mark.soak


class SlowToHear(asyncio.SelectorEventLoop):
    """The first thread that calls it from outside is kept until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()
        self.go_on = threading.Event()

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:
        if not self.called.is_set():
            self.called.set()
            assert self.go_on.wait(60)
        return super().call_soon_threadsafe(*args, **options)


def drive(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Run it as far as it comes in this tick; whether that is to its end."""
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    return False


def test_nobody_waits_for_a_thread_that_is_kept_while_it_wakes_another() -> None:
    semaphore = MemorySemaphore(2)
    held = [semaphore.acquire_sync(), semaphore.acquire_sync()]
    entered: list[int] = []

    async def enter(number: int) -> None:
        async with semaphore.cm():
            entered.append(number)

    with contextlib.closing(SlowToHear()) as loop:
        tasks = [loop.create_task(enter(number)) for number in range(2)]
        loop.run_until_complete(settle())
        kept = threading.Thread(target=semaphore.release_sync, args=(held[0],))
        kept.start()
        assert loop.called.wait(60)
        semaphore.release_sync(held[1])  # which wakes the second, behind the first
        loop.run_until_complete(asyncio.gather(*tasks))
        assert entered == [0, 1]
        loop.go_on.set()
        kept.join(60)
    assert semaphore.stats_sync().acquired_slots == 0
    assert not tracker_of(semaphore).woken
    assert not tracker_of(semaphore).woken.under_way


async def test_a_newcomer_lets_nobody_pass_who_was_woken_in_another_event_loop() -> None:
    semaphore = MemorySemaphore(2)
    both = await semaphore.acquire(2)
    with contextlib.closing(asyncio.SelectorEventLoop()) as other:

        def elsewhere(coroutine: Coroutine[Any, Any, Any]) -> None:
            thread = threading.Thread(target=other.run_until_complete, args=(coroutine,))
            thread.start()
            thread.join()

        waiting = other.create_task(semaphore.acquire())
        elsewhere(settle())
        await semaphore.release(both)
        assert tracker_of(semaphore).woken, "it has not run yet"
        assert drive(semaphore.__aenter__()) or not QUICK_LANE
        await semaphore.__aexit__(None, None, None)
        assert drive(semaphore.acquire())
        elsewhere(settle())
        assert waiting.done()
