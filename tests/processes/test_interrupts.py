"""A signal handler that raises, like that of Ctrl-C, at any point of the thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import _fresh_processes
from tests._interrupting import AMID_STARTS, interrupted_start
from tests.processes._inside import limit_of, single_of
from tests.redis._client import Worker

from slotwise.processes import ProcessSemaphore

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]

ROUNDS = 300
# Between the return of `acquire_sync` and the line that stores its result, and in the middle of a
# release, an interrupt costs the slot. If a thread only acquires and releases, that is up to half.
UNAVOIDABLE = ROUNDS // 2


def test_an_interrupt_leaves_no_lock_and_costs_one_slot_at_most(directory: Path) -> None:
    with _fresh_processes.Popen(
        [sys.executable, "-m", "tests.processes._interrupts", str(directory), str(ROUNDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as interrupted:
        assert interrupted.stdout is not None
        held = int(interrupted.stdout.readline())
        # The other process sleeps, and doesn't have the file's lock.
        semaphore = ProcessSemaphore(name="s", value=1000, directory=directory)
        semaphore.release_sync(semaphore.acquire_sync(timeout=10))
        interrupted.communicate("")
    assert interrupted.returncode == 0
    assert held <= UNAVOIDABLE


@pytest.mark.parametrize(("point", "error"), AMID_STARTS)
async def test_waiters_are_woken_after_an_interrupted_start_of_the_thread_that_wakes_them(
    make: Callable[..., ProcessSemaphore],
    worker: Callable[..., Worker],
    point: str,
    error: type[BaseException],
) -> None:
    other = worker()
    other.tell("acquire")
    assert other.hears().startswith("acquired")
    semaphore = make()
    with interrupted_start(point, error):
        semaphore.try_acquire_sync()
    waiting = asyncio.create_task(semaphore.acquire())
    async with asyncio.timeout(30):
        while (await semaphore.stats()).waiting != 1:
            await asyncio.sleep(0.001)
        other.tell("release")
        await semaphore.release(await waiting)
    single = single_of(limit_of(semaphore).journal.process.wakeups)
    assert single.thread is not None
    assert single.thread.is_alive()
