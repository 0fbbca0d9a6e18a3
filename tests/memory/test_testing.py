"""The helpers that users of slotwise get for their own tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from tests._timers import count_timers

from slotwise import MemorySemaphore
from slotwise._wait import clock as _clock
from slotwise.testing import FakeClock, leaked_slots, settle


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    with FakeClock() as clock:
        before = _clock.now()
        assert _clock.now() == before == clock.now()
        clock.advance(61)
        assert _clock.now() == before + 61
    assert abs(_clock.now() - time.monotonic()) < 60


class Bell:
    """Notes when it was rung."""

    def __init__(self, action: Callable[[], object] = lambda: None) -> None:
        self.rung: list[tuple[float, float]] = []
        self._action = action

    def ring(self, when: float) -> None:
        self.rung.append((when, _clock.now()))
        self._action()


def test_timers_ring_in_their_order_and_at_their_times() -> None:
    bell = Bell()
    with FakeClock() as clock:
        start = clock.now()
        for delay in (20, 10, 31):
            _clock.timekeeper.call_at(start + delay, bell.ring)
        clock.advance(30)
        assert bell.rung == [(start + 10, start + 10), (start + 20, start + 20)]
        clock.advance(1)
    assert len(bell.rung) == 3


def test_timers_of_owners_that_are_gone_do_not_pile_up() -> None:
    before = count_timers()
    with FakeClock() as clock:
        for _ in range(10_000):
            _clock.timekeeper.call_at(clock.now() + 3600, Bell().ring)
        assert count_timers() < before + 500
        clock.advance(3601)


@pytest.mark.soak
def test_a_thread_that_cannot_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def fail_once(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    keeper = _clock.Timekeeper()
    rung = threading.Event()
    bell = Bell(rung.set)
    monkeypatch.setattr(threading.Thread, "start", fail_once)
    keeper.call_at(_clock.now(), bell.ring)
    assert "no thread for timers" in caplog.text
    keeper.call_at(_clock.now(), bell.ring)
    assert rung.wait(60)


def test_the_clock_starts_at_a_whole_second_so_that_sums_are_exact() -> None:
    with FakeClock() as clock:
        start = clock.now()
        clock.advance(10)
        assert start.is_integer()
        assert clock.now() - start == 10


def test_two_fake_clocks_at_once_are_refused() -> None:
    with FakeClock(), pytest.raises(RuntimeError, match="another FakeClock"), FakeClock():
        pass


def test_time_does_not_run_backwards() -> None:
    with FakeClock() as clock, pytest.raises(ValueError, match="0 or more"):
        clock.advance(-1)


def test_timers_of_the_real_clock_go_on_after_a_fake_one() -> None:
    rung = threading.Event()
    bell = Bell(rung.set)
    with FakeClock():
        _clock.timekeeper.call_at(_clock.now(), bell.ring)
        assert not rung.is_set()
    assert rung.wait(60)


def test_a_timer_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    rung = threading.Event()

    def fail() -> None:
        raise LookupError("for the test")

    broken, bell = Bell(fail), Bell(rung.set)
    _clock.timekeeper.call_at(_clock.now(), broken.ring)
    _clock.timekeeper.call_at(_clock.now(), bell.ring)
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
        words = [str(leak) for leak in leaked_slots().values()]
        assert f"'leaking': 1 of 2 held ({acquired.acquisition_id}), 0 waiting" in words
        assert "a private semaphore: 1 of 1 held, 0 waiting" in words
    await semaphore.release(acquired)
    assert not any("leaking" in str(leak) for leak in leaked_slots().values())


async def test_two_may_settle_at_once() -> None:
    await asyncio.gather(settle(), settle(), settle())


def test_the_fixture_fails_a_test_that_leaks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the test
    pytester.makeconftest("from slotwise.testing import no_leaked_slots")
    pytester.makepyfile(
        """
        from slotwise import MemorySemaphore

        shared = MemorySemaphore(name="shared", value=2)

        def test_tidy(no_leaked_slots):
            shared.release_sync(shared.acquire_sync())

        def test_untidy(no_leaked_slots):
            shared.acquire_sync()

        def test_untidy_again(no_leaked_slots):
            shared.acquire_sync()
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=3, errors=2)
    outcome.stdout.fnmatch_lines(["*slots were leaked*", "*'shared': 1 of 2 held*"])
