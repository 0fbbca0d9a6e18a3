"""What limits promise when the system has no thread left, or the interpreter is shutting down."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise import AcquireTimeout, BackendError, Limit
from slotwise._wait.section import lock
from tests._exhausted_threads import refuse_threads
from tests._timers import no_timers
from tests.contract.conftest import Speak

pytestmark = pytest.mark.soak

Make = Callable[..., Limit]
ALWAYS = 1_000_000
NO_THREAD = r"waiting needs a thread, and none could be started: can't start new thread"


@pytest.fixture
def timers() -> Iterator[None]:
    """Timers whose thread isn't running yet."""
    with no_timers():
        yield


@pytest.mark.usefixtures("timers")
async def test_a_timed_wait_ends_in_time_or_does_not_begin(
    request: pytest.FixtureRequest,
    make_limit: Make,
    speak: Speak,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis has other timers, and an event loop that waits alone for a memory semaphore."""
    kind = request.node.callspec.params["limit_driver"]
    limit = make_limit(1)
    with monkeypatch.context() as patch:
        refused = refuse_threads(patch, "slotwise-timekeeper", ALWAYS)
        held = await speak.acquire(limit)
        async with asyncio.timeout(30):
            for _ in range(2):
                with pytest.raises((AcquireTimeout, BackendError)):
                    await speak.acquire(limit, timeout=0.02)
        assert refused or "redis" in kind or (kind == "memory" and not speak.sync)
        await speak.waiting(limit, 0)
        assert await speak.release(limit, held) is True
        held = await speak.acquire(limit, timeout=0.02)
    async with asyncio.timeout(30):
        with pytest.raises(AcquireTimeout):
            await speak.acquire(limit, timeout=0.02)


@pytest.mark.usefixtures("timers")
async def test_nobody_waits_for_the_end_of_a_ttl_that_nobody_sees(
    make_limit: Make, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = make_limit(1, ttl=0.02)
    with monkeypatch.context() as patch:
        refuse_threads(patch, "slotwise-timekeeper", ALWAYS)
        await asyncio.to_thread(limit.acquire_sync)
        async with asyncio.timeout(30):
            try:
                await speak.acquire(limit)
            except BackendError as error:
                assert re.search(NO_THREAD, str(error))  # noqa: PT017 - Redis has other timers
    async with asyncio.timeout(30):
        await speak.acquire(limit)


@pytest.mark.usefixtures("timers")
@pytest.mark.parametrize("limit_driver", ["memory", "processes tiers"], indirect=True)
def test_a_log_handler_may_use_limits(make_limit: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread would wait for the handler's lock in the section, and it for the section."""
    was_in_section: list[bool] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "no thread for timers" in record.getMessage():
                was_in_section.append(lock._is_owned())  # type: ignore[attr-defined]

    handler, logger = Handler(), logging.getLogger("slotwise")
    logger.addHandler(handler)
    try:
        refuse_threads(monkeypatch, "slotwise-timekeeper", ALWAYS)
        limit = make_limit(1, ttl=60)
        held = limit.acquire_sync()
        assert limit.release_sync(held) is True
    finally:
        logger.removeHandler(handler)
    assert was_in_section == [False]


@pytest.mark.parametrize("limit_driver", ["processes", "processes tiers"], indirect=True)
async def test_nobody_waits_who_could_not_be_woken_by_other_processes(
    make_limit: Make, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = make_limit(1)
    with monkeypatch.context() as patch:
        refuse_threads(patch, "slotwise-wakeups", ALWAYS)
        held = await speak.acquire(limit)
        assert await speak.try_acquire(limit) is None
        with pytest.raises(BackendError, match=NO_THREAD):
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
