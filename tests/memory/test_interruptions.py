"""Interruptions in the middle of slotwise itself: garbage collections, signals, failing logs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator

import pytest
from tests import _fresh_processes
from tests._stdlib import discard

from slotwise import MemorySemaphore, SemaphoreStats
from slotwise._wait import section
from slotwise.testing import FakeClock, settle


class CollectsWhenHashed(str):
    """A name whose look-up is interrupted by a garbage collection."""

    __slots__ = ()

    def __hash__(self) -> int:
        gc.collect()
        return str.__hash__(self)


def held_by_garbage(semaphore: MemorySemaphore, slots: int = 1) -> None:
    """Hold slots in a coroutine that only a garbage collection will end."""

    async def hold() -> None:
        async with semaphore.cm(slots):
            await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    task = loop.create_task(hold())
    loop.run_until_complete(settle())
    discard(task)
    loop.close()


def test_what_a_collection_frees_while_somebody_looks_reaches_the_next() -> None:
    semaphore = MemorySemaphore(value=1)
    served = threading.Event()
    gc.disable()
    try:
        held_by_garbage(semaphore)
        waiting = threading.Thread(target=lambda: (semaphore.acquire_sync(), served.set()))
        waiting.start()
        while not semaphore.stats_sync().waiting:
            pass
        MemorySemaphore.get_acquired_stats_sync([CollectsWhenHashed("nobody")])
    finally:
        gc.enable()
    assert served.wait(60)
    waiting.join()


def test_a_holder_that_takes_a_slot_in_the_middle_of_a_change_is_told() -> None:
    semaphore = MemorySemaphore(value=1)
    outcome: list[str] = []

    def interrupted() -> None:
        try:
            semaphore.acquire_sync(1, timeout=1) and semaphore.acquire_sync(timeout=1)
        except RuntimeError as error:
            outcome.append(str(error))

    section.exclusive(interrupted)
    assert "interrupted slotwise" in outcome[0]
    assert not section.section.busy


@pytest.mark.soak
def test_a_signal_handler_that_raises_does_not_keep_the_lock() -> None:
    program = """
    import signal
    from slotwise import MemorySemaphore

    class Stop(Exception): ...

    def stop(*_):
        raise Stop

    with MemorySemaphore(value=2).cm(2):
        pass  # what is loaded on first use would log the failure, and go on

    signal.signal(signal.SIGALRM, stop)
    for _ in range(3000):
        try:
            signal.setitimer(signal.ITIMER_REAL, 2e-4)
            while True:
                with MemorySemaphore(value=2).cm(2):
                    pass
        except Stop:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    MemorySemaphore(name="after", value=2).acquire_sync(2)
    print("goes on")
    """
    outcome = _fresh_processes.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert outcome.stdout == "goes on\n", outcome.stderr


def test_a_signal_handler_may_release(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore = MemorySemaphore(value=1)
    acquired = semaphore.acquire_sync()
    before = signal.signal(signal.SIGUSR1, lambda *_: semaphore.release_sync(acquired))
    try:
        section.exclusive(signal.raise_signal, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not semaphore.locked_sync()


# ------------------------------------------------------------------------ logs


class Refuses(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError("for the test")


@pytest.fixture
def failing_log() -> AsyncIterator[None]:
    refuses = Refuses()
    logger = logging.getLogger("slotwise.memory")
    logger.addFilter(refuses)
    yield
    logger.removeFilter(refuses)


async def test_the_waiter_is_served_at_the_end_of_a_ttl_whatever_the_log_does(
    clock: FakeClock, failing_log: None
) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10)
    await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await settle()
    with pytest.raises(LookupError):
        clock.advance(10)
    await settle()
    assert waiting.done()


async def test_an_acquisition_that_cannot_be_logged_takes_nothing(
    failing_log: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slotwise.memory")
    semaphore = MemorySemaphore(value=1)
    with pytest.raises(LookupError):
        await semaphore.acquire()
    caplog.set_level(logging.WARNING, "slotwise.memory")
    assert await semaphore.stats() == SemaphoreStats(0, 1)


# ---------------------------------------------------- blocks left by somebody else


@pytest.mark.parametrize("kind", ["plain", "ttl", "logged"])
async def test_a_block_may_be_left_by_another_task(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the loop closes an asynchronous generator that was not used up."""
    if kind == "logged":
        caplog.set_level(logging.DEBUG, "slotwise.memory")
    semaphore = MemorySemaphore(value=2, ttl=60 if kind == "ttl" else None)

    async def rows() -> AsyncIterator[int]:
        async with semaphore:
            yield 1

    generator = rows()
    await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
    async with semaphore:
        await generator.aclose()
        assert (await semaphore.stats()).acquired_slots == 1
    assert await semaphore.stats() == SemaphoreStats(0, 2)


# ------------------------------------------------------------------- as a value


def test_a_cm_that_was_not_entered_is_a_decent_object() -> None:
    semaphore = MemorySemaphore(name="decent", value=1)
    one, other = semaphore.cm(), semaphore.cm()
    assert repr(one) == "<cm() of 'decent', not entered yet>"
    assert one == one
    assert one != other
    assert len({one, other}) == 2
    for attribute in ("slot_number", "acquisition_id"):
        with pytest.raises(RuntimeError, match="not entered yet"):
            getattr(one, attribute)


# ------------------------------------------------------------- threads and loops


async def test_leaving_a_block_that_was_not_entered_is_an_error() -> None:
    semaphore = MemorySemaphore(name="not entered", value=1)
    with pytest.raises(RuntimeError, match="not in a 'with' block of 'not entered'"):
        await semaphore.__aexit__(None, None, None)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


def test_release_sync_and_other_looks_work_inside_a_running_loop() -> None:
    async def main() -> None:
        semaphore = MemorySemaphore(value=1)
        acquired = semaphore.try_acquire_sync()
        assert acquired is not None
        assert semaphore.locked_sync()
        assert semaphore.stats_sync() == SemaphoreStats(1, 1)
        semaphore.resize_sync(2)
        assert semaphore.release_sync(acquired)
        semaphore.close_sync()

    asyncio.run(main())


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_interpreter_ends_quietly_with_holders_and_waiters_left() -> None:
    outcome = run_python(
        """
        import asyncio, threading
        from slotwise import MemorySemaphore

        left = MemorySemaphore(name="left", value=1, ttl=3600, cancel_task_after_ttl=True)

        async def main():
            await left.acquire()
            waiting = asyncio.create_task(left.acquire(timeout=1000))
            await asyncio.sleep(0)

        asyncio.run(main())
        threading.Thread(target=left.acquire_sync, daemon=True).start()
        with MemorySemaphore(value=1):
            print("over")
        """
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "over\n", "")


def test_importing_slotwise_imports_nothing_but_the_standard_library() -> None:
    outcome = run_python(
        """
        import sys
        before = set(sys.modules)
        import slotwise
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(new - sys.stdlib_module_names - {"slotwise"}))
        """
    )
    assert (outcome.stdout, outcome.stderr) == ("[]\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_a_forked_child_can_go_on_and_its_ids_are_its_own() -> None:
    outcome = run_python(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads
        from slotwise import MemorySemaphore

        semaphore = MemorySemaphore(value=1, ttl=0.05)
        first = semaphore.acquire_sync()
        child = os.fork()
        second = semaphore.acquire_sync(timeout=30)  # the ttl ends in both
        assert second.acquisition_id != first.acquisition_id
        if not child:
            foreign = semaphore.release_sync(first.acquisition_id)
            os._exit(foreign or not semaphore.release_sync(second))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert (outcome.returncode, outcome.stdout) == (0, "0\n")
