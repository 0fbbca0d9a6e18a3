"""Helpers for tests of code that uses slotwise: a fake clock, settle() and leak checks.

The rest of the package doesn't import this module. Only the fixture needs pytest; a
``conftest.py`` imports it:

    from slotwise.testing import no_leaked_slots
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from slotwise._core.paths import SEMAPHORE_PATH
from slotwise._wait import clock
from slotwise.memory._tracker import Tracker

__all__ = ["FakeClock", "Leak", "leaked_slots", "no_leaked_slots", "settle"]

# A loop whose tasks are still busy after this many iterations never settles.
_MAX_ITERATIONS = 100_000
# For event loops that hide their queue of callbacks.
_BLIND_ITERATIONS = 100


class FakeClock:
    """Replaces the clock of slotwise by one that only `advance` moves.

    `advance` runs the timers that become due, in order and in the calling thread, each
    at its own time.

        with FakeClock() as clock:
            ...
            clock.advance(61)

    What goes by it ends with it, for limits in memory: ttls, timeouts and pauses have run out,
    rates are full, and adaptive values start over.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def __enter__(self) -> FakeClock:
        if clock.timekeeper.stopped:
            raise RuntimeError("another FakeClock is active already")
        clock.timekeeper.stop()
        # From a whole second on, so that sums of whole seconds are exact and compare as equal.
        self._now = float(math.ceil(time.monotonic()))
        clock.now = self.now
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Not isinstance: what other packages make may answer that with an error.
        trackers = [each for each in gc.get_objects() if issubclass(type(each), Tracker)]
        for tracker in trackers:
            tracker.run_out(self._move_to)
        clock.now = time.monotonic
        for tracker in trackers:
            tracker.start_over()
        clock.timekeeper.resume()

    def now(self) -> float:
        """Return the current time of this clock."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and run the timers that become due."""
        if seconds < 0:
            raise ValueError(f"seconds must be 0 or more, not {seconds!r}")
        target = self._now + seconds
        clock.timekeeper.run_due(target, self._move_to)
        self._move_to(target)

    def _move_to(self, when: float) -> None:
        self._now = max(when, self._now)


async def settle() -> None:
    """Let every other task of this event loop run until it is blocked.

    On event loops that hide their queue of callbacks, such as uvloop's, it waits for a
    hundred iterations, and can't tell whether that was enough.

    Raises:
        RuntimeError: a task never blocks.
    """
    loop = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", None)
    if ready is None:
        for _ in range(_BLIND_ITERATIONS):
            await asyncio.sleep(0)
        return
    _settling[loop] = _settling.get(loop, 0) + 1
    try:
        for _ in range(_MAX_ITERATIONS):
            await asyncio.sleep(0)
            # Don't wait for other calls of settle(): they wait for this one.
            if len(ready) < _settling[loop]:
                return
    finally:
        _settling[loop] -= 1
    raise RuntimeError(f"the event loop is still busy after {_MAX_ITERATIONS} iterations")


_settling: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Leak:
    """The holders and waiters of one semaphore, or of one set of tiers."""

    held: int
    waiting: int
    words: str

    def __str__(self) -> str:
        return self.words


def leaked_slots() -> dict[int, Leak]:
    """Return what is held or waited for in this process right now, by semaphore.

    It covers all semaphores and tiers in memory, private ones too; the keys tell them apart.
    """
    gc.collect()  # what is only garbage is not a leak
    found = {}
    # Not isinstance: what other packages make may answer that with an error.
    for tracker in [thing for thing in gc.get_objects() if issubclass(type(thing), Tracker)]:
        holders = tracker.claims()
        waiting, held, of = len(tracker.ledger.waiting), len(holders), ""
        if tracker.is_semaphore:
            stats = tracker.stats_of(SEMAPHORE_PATH).tightest()  # blocks have no claims
            waiting, held, of = stats.waiting, stats.acquired_slots, f" of {stats.max_slots}"
        if held or waiting:
            ids = ", ".join(claim.acquisition_id for claim in holders)
            named = f" ({ids})" if ids else ""
            words = f"{tracker.title}: {held}{of} held{named}, {waiting} waiting"
            found[id(tracker)] = Leak(held, waiting, words)
    return found


if TYPE_CHECKING:
    no_leaked_slots: Any


def __getattr__(name: str) -> object:
    if name != "no_leaked_slots":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest  # only the fixture needs it

    @pytest.fixture
    def no_leaked_slots() -> Iterator[None]:
        """Fail a test that leaves slots held, or requests waiting, that were not there before."""
        before = leaked_slots()
        yield
        none = Leak(0, 0, "")
        leaks = [
            str(leak)
            for key, leak in leaked_slots().items()
            if leak.held > before.get(key, none).held
            or leak.waiting > before.get(key, none).waiting
        ]
        if leaks:
            pytest.fail("slots were leaked:\n" + "\n".join(leaks), pytrace=False)

    globals()[name] = no_leaked_slots
    return no_leaked_slots
