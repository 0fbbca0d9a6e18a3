"""How wake-ups reach other threads: nobody waits for one who delivers, and none is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.memory._raising_handlers import interrupted

from slotwise import MemorySemaphore
from slotwise._ledger.base import QUICK_LANE
from slotwise._wait import deliveries
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
    assert not semaphore._tracker.woken
    assert not semaphore._tracker.woken.under_way


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
        assert semaphore._tracker.woken, "it has not run yet"
        assert drive(semaphore.__aenter__()) or not QUICK_LANE
        await semaphore.__aexit__(None, None, None)
        assert drive(semaphore.acquire())
        elsewhere(settle())
        assert waiting.done()


# ------------------------------------------------------------------ interrupted meanwhile

# An interrupt in a finalizer is swallowed by the interpreter.
swallowed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Handover:
    """Somebody holds the only slot, and a task of another event loop waits for it."""

    def __init__(self, way: str) -> None:
        self.semaphore = MemorySemaphore(1)
        self.held = self.semaphore if way == "block" else self.semaphore.cm()
        self.held.__enter__()
        self.loop = asyncio.SelectorEventLoop()
        self.loop.set_exception_handler(lambda *_: None)  # it is told of interrupts
        self.task = self.loop.create_task(self.semaphore.cm().__aenter__())
        self.run_loop()

    def leave(self) -> None:
        self.held.__exit__(None, None, None)

    def run_loop(self) -> None:
        self.loop.run_until_complete(settle())

    def end(self) -> None:
        self.task.cancel()
        self.loop.run_until_complete(asyncio.wait([self.task]))
        self.loop.close()


@swallowed
@pytest.mark.parametrize("way", ["block", "cm"])
def test_an_interrupt_while_a_slot_is_handed_over_leaves_no_wake_up_undelivered(way: str) -> None:
    for number in itertools.count(1):
        handover = Handover(way)
        hit = interrupted(number, handover.leave, everywhere=False)
        assert not deliveries.posted
        handover.run_loop()
        handover.end()
        if not hit:
            break
    assert number > 20, "nothing was interrupted"


@swallowed
def test_an_interrupt_in_the_event_loop_that_is_told_does_not_keep_the_waiter_waiting() -> None:
    for number in itertools.count(1):
        handover = Handover("cm")
        handover.leave()
        hit = interrupted(number, handover.run_loop, everywhere=False)
        gc.collect()  # asyncio keeps what was interrupted before it began
        handover.run_loop()
        assert handover.task.done(), f"interrupted at {number}"
        handover.end()
        if not hit:
            break
    assert number > 5, "nothing was interrupted"
