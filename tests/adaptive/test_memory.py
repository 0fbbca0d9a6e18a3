"""An adaptive MemorySemaphore: how holds end, what moves the value, and who may share a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slotwise
from slotwise import Adaptive, Errors, Latency, MemorySemaphore
from slotwise.instrumentation import add_hook, remove_hook
from slotwise.testing import FakeClock

ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


@pytest.fixture
def clock() -> Any:
    with FakeClock() as clock:
        yield clock


def test_what_was_learnt_outlives_an_idle_time_of_less_than_an_hour(clock: FakeClock) -> None:
    limit = MemorySemaphore(ERRORS, name="learnt")
    limit.release_sync(limit.acquire_sync(), outcome="dropped")
    clock.advance(3000)
    assert MemorySemaphore(ERRORS, name="learnt").value == 7
    clock.advance(1000)
    del limit
    assert MemorySemaphore(ERRORS, name="learnt").value == 10
    MemorySemaphore(ERRORS, name="learnt").freeze_sync(5)
    clock.advance(10_000)
    assert MemorySemaphore(ERRORS, name="learnt").value == 5


@pytest.mark.parametrize("url", ["memory", "process"])
async def test_hooks_hear_of_each_change_once_and_of_no_probe(
    url: str, clock: FakeClock, tmp_path: Path
) -> None:
    options = Adaptive(6, 2, 40, algorithm=Latency(0.1, 5))
    where = "memory://" if url == "memory" else f"process://{tmp_path}/slots"
    limit = slotwise.semaphore(f"probed by {url}", options, where)
    seen: list[Any] = []
    limits = set()
    add_hook(seen.append)
    try:
        for _ in range(60):
            held = [limit.try_acquire_sync() for _ in range(limit.value)]
            clock.advance(0.05 * max(len(held) / 10, 1))
            for each in held:
                assert each is not None
                limit.release_sync(each)
                limits.add(limit.value)
    finally:
        remove_hook(seen.append)
    told = [(each.value, each.reason) for each in seen if each.kind == "adapted"]
    changes = limit.changes_sync()
    assert told == [(each.new, each.reason) for each in changes]
    assert changes
    assert limits - {each.new for each in changes} - {6}, "there were probes"
