"""A process was stopped in the middle of a change, and keeps the file's lock."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import _fresh_processes
from tests._exhausted_threads import refuse_threads

from slotwise import AcquireTimeout, BackendError, SemaphoreStats
from slotwise.processes import ProcessSemaphore, _limit
from slotwise.processes._filenames import filename_of
from slotwise.processes._messages import is_stopped

Make = Callable[..., ProcessSemaphore]

ROOT = Path(__file__).parents[2]


@contextmanager
def stuck(directory: Path) -> Iterator[int]:
    """Run a process that has the lock, and yield its pid."""
    hog = _fresh_processes.Popen(
        [sys.executable, "-m", "tests.processes._lock_hog", str(directory / filename_of("s"))],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with hog:  # which closes its input, and waits for its end
        assert hog.stdout is not None
        assert hog.stdout.readline() == "locked\n"
        yield hog.pid


async def test_a_slot_is_released_even_if_no_thread_can_wait_for_the_lock(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = make()
    held = await semaphore.acquire()
    start = threading.Thread.start
    with stuck(directory) as pid:

        def refuse(thread: threading.Thread) -> None:
            if thread.name != "slotwise-file-lock":
                return start(thread)
            os.kill(pid, signal.SIGKILL)  # or it would never be released
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert await semaphore.release(held) is True


async def test_nothing_is_requested_if_no_thread_can_wait_for_the_lock(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = make()
    await semaphore.release(await semaphore.acquire())
    refuse_threads(monkeypatch, "slotwise-file-lock", 1)
    with stuck(directory), pytest.raises(BackendError, match="waiting needs a thread"):
        await semaphore.acquire()
    assert (await semaphore.stats()).acquired_slots == 0


@pytest.mark.soak
async def test_the_event_loop_keeps_running_meanwhile(make: Make, directory: Path) -> None:
    semaphore = make()
    held = await semaphore.acquire()
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)

    watching = asyncio.create_task(watch())
    with stuck(directory):
        calls = [
            asyncio.create_task(semaphore.release(held)),
            asyncio.create_task(semaphore.acquire()),
        ]
        await asyncio.wait(calls, timeout=0.3)
        assert not any(call.done() for call in calls)
    freed, acquired = await asyncio.wait_for(asyncio.gather(*calls), 30)
    watching.cancel()
    assert freed is True
    assert await semaphore.release(acquired) is True
    assert longest < 5


async def test_a_cancelled_request_takes_nothing_once_the_lock_is_free(
    make: Make, directory: Path
) -> None:
    semaphore = make()
    await semaphore.release(await semaphore.acquire())
    with stuck(directory):
        asking = asyncio.create_task(semaphore.acquire())
        await asyncio.wait([asking], timeout=0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    async with asyncio.timeout(30):
        await semaphore.acquire()


@pytest.mark.soak
async def test_a_timeout_is_kept(make: Make, directory: Path) -> None:
    semaphore = make()
    await semaphore.release(await semaphore.acquire())
    with stuck(directory) as pid:
        told = rf"in 0\.1 s: .* process {pid} kept its lock .*; it may be stopped: .*`kill -CONT"
        with pytest.raises(AcquireTimeout, match=told):
            await semaphore.acquire(timeout=0.1)
        with pytest.raises(AcquireTimeout, match=told):
            await asyncio.to_thread(semaphore.acquire_sync, timeout=0.1)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


def test_stats_gives_up_and_names_the_process(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_limit, "LOCK_TIMEOUT", 0.1)
    semaphore = make()
    held = semaphore.acquire_sync()
    with stuck(directory) as pid, pytest.raises(BackendError, match=f"kill -CONT {pid}"):
        semaphore.stats_sync()
    assert semaphore.release_sync(held) is True


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows that it is stopped")
async def test_looking_does_not_wait_for_a_process_that_is_stopped(
    make: Make, directory: Path
) -> None:
    semaphore = make()
    await semaphore.release(await semaphore.acquire())
    with stuck(directory) as pid:
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            for look in (semaphore.stats, semaphore.holders, semaphore.locked):
                with pytest.raises(BackendError, match=f"process {pid} is stopped"):
                    await look()
            with pytest.raises(BackendError, match=f"process {pid} is stopped"):
                semaphore.waiters_sync()
        finally:
            os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < _limit.LOCK_TIMEOUT  # each takes a second


def test_a_stopped_process_is_reported_as_stopped(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system does not tell")
    monkeypatch.setattr(_limit, "LOCK_TIMEOUT", 0.1)
    semaphore = make()
    semaphore.acquire_sync()
    with stuck(directory) as pid:
        os.kill(pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + 30
            while not is_stopped(pid):
                assert time.monotonic() < until
            with pytest.raises(
                BackendError, match=f"process {pid} is stopped .*: continue it with `kill -CONT"
            ):
                semaphore.stats_sync()
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_withdrawal_is_completed_later(make: Make, directory: Path) -> None:
    semaphore = make()
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    async with asyncio.timeout(30):
        while not (await semaphore.stats()).waiting:
            await asyncio.sleep(0.001)
    with stuck(directory):
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(30):
        while (await semaphore.stats()).waiting:
            await asyncio.sleep(0.001)
    assert await semaphore.release(held) is True
