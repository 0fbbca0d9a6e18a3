"""The helpers that users of slotwise get for their own tests."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from slotwise import MemorySemaphore, _clock
from slotwise.testing import FakeClock, leaked_slots, settle


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    with FakeClock() as clock:
        before = _clock.now()
        assert _clock.now() == before == clock.now()
        clock.advance(61)
        assert _clock.now() == before + 61
    assert abs(_clock.now() - time.monotonic()) < 60


def test_timers_ring_in_their_order_and_at_their_times() -> None:
    rung: list[tuple[str, float]] = []
    with FakeClock() as clock:
        start = clock.now()
        for name, delay in [("late", 20), ("soon", 10), ("never", 31)]:
            _clock.timekeeper.call_at(
                start + delay, lambda name=name: rung.append((name, clock.now() - start))
            )
        clock.advance(30)
        assert [(name, round(when, 6)) for name, when in rung] == [("soon", 10), ("late", 20)]
        clock.advance(1)
    assert rung[-1][0] == "never"


def test_two_fake_clocks_at_once_are_refused() -> None:
    with FakeClock(), pytest.raises(RuntimeError, match="running already"), FakeClock():
        pass


def test_time_does_not_run_backwards() -> None:
    with FakeClock() as clock, pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_timers_of_the_real_clock_go_on_after_a_fake_one() -> None:
    rung = threading.Event()
    with FakeClock():
        _clock.timekeeper.call_at(_clock.now(), rung.set)
        assert not rung.is_set()
    assert rung.wait(60)


def test_a_timer_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    rung = threading.Event()

    def fail() -> None:
        raise LookupError("for the test")

    _clock.timekeeper.call_at(_clock.now(), fail)
    _clock.timekeeper.call_at(_clock.now(), rung.set)
    assert rung.wait(60)
    assert "a timer failed" in caplog.text


async def test_settle_returns_when_all_others_are_blocked() -> None:
    steps = []

    async def work() -> None:
        for step in range(10):
            steps.append(step)
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    assert len(steps) == 10
    task.cancel()


async def test_leaks_are_told_in_words() -> None:
    semaphore = MemorySemaphore(name="leaking", value=2)
    acquired = await semaphore.acquire()
    async with MemorySemaphore(value=1):
        words = sorted(leaked_slots().values())
        assert f"'leaking': 1 of 2 held ({acquired.acquisition_id}), 0 waiting" in words
        assert "a private semaphore: 1 of 1 held, 0 waiting" in words
    await semaphore.release(acquired)
    assert not any("leaking" in line for line in leaked_slots().values())


def test_the_fixture_fails_a_test_that_leaks(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from slotwise.testing import no_leaked_slots")
    pytester.makepyfile(
        """
        from slotwise import MemorySemaphore

        shared = MemorySemaphore(name="shared", value=2)

        def test_tidy(no_leaked_slots):
            shared.release_sync(shared.acquire_sync())

        def test_untidy(no_leaked_slots):
            shared.acquire_sync()
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=2, errors=1)
    outcome.stdout.fnmatch_lines(["*slots were leaked*", "*'shared': 1 of 2 held*"])
