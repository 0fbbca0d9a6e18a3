"""What limits promise when the system has no thread left, or the interpreter is shutting down."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slotwise import AcquireTimeout, BackendError, Limit
from slotwise._wait import clock
from tests._exhausted_threads import refuse_threads
from tests.contract.conftest import Speak

Make = Callable[..., Limit]
ALWAYS = 1_000_000


@pytest.fixture
def no_timers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the thread for timers be one that can't be started."""
    monkeypatch.setattr(clock, "timekeeper", clock.Timekeeper())
    return refuse_threads(monkeypatch, "slotwise-timekeeper", ALWAYS)


@pytest.mark.usefixtures("no_timers")
async def test_a_timeout_ends_the_wait(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1)
    held = await speak.acquire(limit)
    async with asyncio.timeout(30):
        for _ in range(2):
            with pytest.raises(AcquireTimeout):
                await speak.acquire(limit, timeout=0.02)
    assert await speak.release(limit, held) is True


@pytest.mark.usefixtures("no_timers")
async def test_a_ttl_frees_the_slot_for_whoever_waits(make_limit: Make, speak: Speak) -> None:
    limit = make_limit(1, ttl=0.02)
    await speak.acquire(limit)
    async with asyncio.timeout(30):
        assert await speak.acquire(limit) is not None


@pytest.mark.parametrize("limit_driver", ["processes", "processes tiers"], indirect=True)
async def test_who_could_not_be_woken_by_other_processes_gets_what_is_free_and_else_an_error(
    make_limit: Make, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = make_limit(1)
    with monkeypatch.context() as patch:
        refuse_threads(patch, "slotwise-wakeups", ALWAYS)
        held = await speak.acquire(limit)
        assert await speak.try_acquire(limit) is None
        with pytest.raises(BackendError, match=r"needs a thread.*can't start new thread"):
            await speak.acquire(limit)
        with pytest.raises(AcquireTimeout):
            await speak.acquire(limit, timeout=0)
        assert (await speak.stats(limit)).waiting == 0
    waiting = asyncio.create_task(speak.acquire(limit))
    await speak.waiting(limit, 1)
    await speak.release(limit, held)
    async with asyncio.timeout(30):
        assert await waiting is not None


@pytest.mark.parametrize("scheme", ["memory", "process"])
def test_a_wait_while_the_interpreter_shuts_down_ends(scheme: str, tmp_path: Path) -> None:
    """Python 3.12 starts no thread then; others do."""
    url = f"process://{tmp_path}/slots" if scheme == "process" else "memory://"
    command = [sys.executable, "-c", _AT_EXIT, url]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert done.stdout in ("AcquireTimeout\n", "BackendError\n"), done.stderr


_AT_EXIT = """
import atexit, sys
from slotwise import semaphore

limit = semaphore("s", 1, url=sys.argv[1])

@atexit.register
def wait():
    limit.try_acquire_sync()
    try:
        limit.acquire_sync(timeout=0.05)
    except Exception as error:
        print(type(error).__name__)
"""
