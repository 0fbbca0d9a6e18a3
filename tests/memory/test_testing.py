"""The helpers that users of slotwise get for their own tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from tests._timers import count_timers

from slotwise import (
    AcquireTimeout,
    Adaptive,
    Errors,
    MemorySemaphore,
    Rate,
    RateLimit,
    Tier,
    Tiers,
)
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


def test_timers_of_owners_that_are_gone_do_not_pile_up() -> None:
    before = count_timers()
    with FakeClock() as clock:
        for _ in range(10_000):
            _clock.timekeeper.call_at(clock.now() + 3600, Bell().ring)
        assert count_timers() < before + 500
        clock.advance(3601)


def test_two_fake_clocks_at_once_are_refused() -> None:
    with FakeClock(), pytest.raises(RuntimeError, match="another FakeClock"), FakeClock():
        pass


def test_time_does_not_run_backwards() -> None:
    with FakeClock() as clock, pytest.raises(ValueError, match="0 or more"):
        clock.advance(-1)


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


# --------------------------------------------------- what ends with a fake clock


HOUR = 3600


@pytest.mark.parametrize("name", ["a rate of two clocks", None])
async def test_a_rate_is_full_again(name: str | None) -> None:
    rate = RateLimit(name, Rate(10, per=60, burst=10))
    for _ in range(2):
        with FakeClock() as clock:
            clock.advance(HOUR)
            await rate.acquire(cost=10, timeout=0)
    with FakeClock() as clock:
        await rate.acquire(cost=10, timeout=0)
        waiting = asyncio.create_task(rate.acquire(cost=10))
        await asyncio.sleep(0)
        clock.advance(60)
        await waiting


@pytest.mark.parametrize("name", ["held over two clocks", None])
async def test_holds_with_a_ttl_and_waits_with_a_timeout_are_over(name: str | None) -> None:
    semaphore = MemorySemaphore(1, name=name, ttl=60)
    with FakeClock() as clock:
        clock.advance(HOUR)
        acquired = await semaphore.acquire()
        waiting = asyncio.create_task(semaphore.acquire(timeout=30))
        await asyncio.sleep(0)
    with pytest.raises(AcquireTimeout):
        await waiting
    assert acquired.lost.is_set()
    assert not await semaphore.locked()


async def test_adaptive_values_start_over() -> None:
    rules = Adaptive(start=10, min=1, max=20, algorithm=Errors())
    semaphore, tiers = MemorySemaphore(rules), Tiers(Tier("all", rules))
    with FakeClock() as clock:
        clock.advance(HOUR)
        for limit in (semaphore, tiers.at()):
            await limit.release(await limit.acquire(), outcome="dropped")
            assert (await limit.stats()).max_slots < 10
    for limit in (semaphore, tiers.at()):
        assert (await limit.stats()).max_slots == 10
    with FakeClock() as clock:
        for limit in (semaphore, tiers.at()):
            await limit.release(await limit.acquire(), outcome="dropped")
            assert (await limit.stats()).max_slots < 10
