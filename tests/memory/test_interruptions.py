"""Interruptions in the middle of slotwise itself: garbage collections, signals, failing logs."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests import _fresh_processes
from tests._stdlib import discard

from slotwise import MemorySemaphore, SemaphoreStats
from slotwise._core.limit import AcquisitionContext
from slotwise._wait import section
from slotwise.memory import _registry, _tracker
from slotwise.memory._tracker import Tracker
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


@pytest.mark.soak
@pytest.mark.parametrize("slots", [1, 2])
def test_a_collection_in_the_section_can_end_a_block(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    collections = []

    def collect_and_make(*args: Any) -> Tracker:
        collections.append(gc.collect())
        return Tracker(*args)

    monkeypatch.setattr(_registry, "Tracker", collect_and_make)
    semaphore = MemorySemaphore(value=2)
    gc.disable()
    try:
        held_by_garbage(semaphore, slots)
        MemorySemaphore(name=f"collected {slots}", value=1)
    finally:
        gc.enable()
    assert collections
    assert semaphore.stats_sync() == SemaphoreStats(0, 2)


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


# ----------------------------------------------------------------- many of them


async def test_a_long_line_of_those_who_gave_up_is_passed_in_one_go() -> None:
    semaphore = MemorySemaphore(value=1)

    async def visit() -> None:
        async with semaphore:
            pass

    async with semaphore.cm():
        waiting = [asyncio.create_task(visit()) for _ in range(5_000)]
        await settle()
        for task in waiting[:2_400]:
            task.cancel()
        await settle()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await semaphore.stats() == SemaphoreStats(0, 1)


async def test_a_task_that_left_its_block_is_not_cancelled_for_its_ttl() -> None:
    semaphore = MemorySemaphore(value=200, ttl=0.02, cancel_task_after_ttl=True)
    wrongly = 0

    async def visit(stay: float) -> None:
        nonlocal wrongly
        try:
            async with semaphore.cm():
                await asyncio.sleep(stay)
        except asyncio.CancelledError:
            return
        try:
            for _ in range(10):
                await asyncio.sleep(0.0005)
        except asyncio.CancelledError:
            wrongly += 1

    logging.getLogger("slotwise.memory").setLevel(logging.ERROR)
    try:
        for _ in range(5):
            stays = [0.02 + (number - 100) * 2e-5 for number in range(200)]
            await asyncio.gather(*[visit(stay) for stay in stays], return_exceptions=True)
    finally:
        logging.getLogger("slotwise.memory").setLevel(logging.NOTSET)
    assert wrongly == 0
    assert not _tracker.ttl_cancels


async def test_releasing_an_expired_id_elsewhere_does_not_save_its_task(clock: FakeClock) -> None:
    semaphore = MemorySemaphore(value=1, ttl=10, cancel_task_after_ttl=True)
    stranger = MemorySemaphore(value=1, ttl=10)
    ids: list[str] = []

    async def hold() -> None:
        ids.append((await semaphore.acquire()).acquisition_id)
        await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await settle()
    clock.advance(10)
    assert await stranger.release(ids[0]) is False
    await settle()
    assert task.cancelled()


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


def enter_together(cm: AcquisitionContext, gate: threading.Barrier, errors: list[int]) -> None:
    gate.wait()
    try:
        with cm:
            pass
    except RuntimeError:
        errors.append(1)


@pytest.mark.soak
def test_two_threads_cannot_share_a_cm() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            semaphore = MemorySemaphore(value=2)
            cm, gate, errors = semaphore.cm(), threading.Barrier(2), []
            threads = [
                threading.Thread(target=enter_together, args=(cm, gate, errors)) for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(errors) == 1
            assert semaphore.stats_sync() == SemaphoreStats(0, 2)
    finally:
        sys.setswitchinterval(before)
