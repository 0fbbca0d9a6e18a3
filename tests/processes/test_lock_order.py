"""Locks are always taken in the same order, also by code that interrupts other code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.processes._inside import limit_of

from slotwise._wait.section import lock
from slotwise.processes import ProcessSemaphore
from slotwise.processes._limit import SharedLimit

pytestmark = pytest.mark.soak

Make = Callable[..., ProcessSemaphore]

LONG = 30.0


def test_a_garbage_collection_under_the_timers_lock_does_not_deadlock(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread changes the file and sets a timer, another withdraws under the timers' lock."""
    semaphore = make(2, ttl=60.0)
    changing, interrupted = threading.Event(), threading.Event()
    write = SharedLimit.write

    def write_slowly(file: SharedLimit, *args: Any) -> None:
        write(file, *args)
        changing.set()
        assert interrupted.wait(LONG)

    monkeypatch.setattr(SharedLimit, "write", write_slowly)
    acquired: list[object] = []
    change = threading.Thread(target=lambda: acquired.append(semaphore.acquire_sync()), daemon=True)
    change.start()
    assert changing.wait(LONG)
    file = limit_of(semaphore)

    def collect() -> None:
        with lock:
            interrupted.set()
            file.end_later("p1-1")
            file.finish_pending()

    collection = threading.Thread(target=collect, daemon=True)
    collection.start()
    change.join(LONG)
    collection.join(LONG)
    assert not change.is_alive()
    assert not collection.is_alive()
    assert len(acquired) == 1
