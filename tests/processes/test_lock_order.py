"""Locks are taken in one order, whoever interrupts whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from slotwise._wait.section import lock
from slotwise.processes import ProcessSemaphore
from slotwise.processes._semaphore_file import SemaphoreFile

Make = Callable[..., ProcessSemaphore]

LONG = 30.0


def test_a_collection_amid_the_timers_lock_waits_for_no_change_that_sets_a_timer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread changes the file and sets an alarm, another withdraws under the alarm's lock."""
    semaphore = make(2, ttl=60.0)
    changing, interrupted = threading.Event(), threading.Event()
    write = SemaphoreFile.write

    def write_slowly(file: SemaphoreFile, *args: Any) -> None:
        write(file, *args)
        changing.set()
        assert interrupted.wait(LONG)

    monkeypatch.setattr(SemaphoreFile, "write", write_slowly)
    acquired: list[object] = []
    change = threading.Thread(target=lambda: acquired.append(semaphore.acquire_sync()), daemon=True)
    change.start()
    assert changing.wait(LONG)
    file = semaphore._attachment.file()

    def collect() -> None:
        with lock:
            interrupted.set()
            file.withdraw_id("p1-1")

    collection = threading.Thread(target=collect, daemon=True)
    collection.start()
    change.join(LONG)
    collection.join(LONG)
    assert not change.is_alive()
    assert not collection.is_alive()
    assert len(acquired) == 1
