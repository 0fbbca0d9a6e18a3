"""Helpers for tests of code that uses slotwise: time by hand, and leak checks.

Nothing here is imported by the rest of the package. pytest is needed only for
the fixture, which a ``conftest.py`` gets by importing it:

    from slotwise.testing import no_leaked_slots
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from slotwise import _clock
from slotwise.memory._tracker import Tracker, lock

__all__ = ["FakeClock", "leaked_slots", "no_leaked_slots", "settle"]

# A test whose tasks are still busy after so many turns of the loop never settles.
_MOST_TURNS = 100_000
# For event loops that hide their queue of callbacks.
_TURNS_BLINDLY = 100


class FakeClock:
    """Stops every clock of slotwise, and moves them by hand.

    Timers that fall due are run by `advance`, in their order and in the
    calling thread, each at its own time.

        with FakeClock() as clock:
            ...
            clock.advance(61)
    """

    def __init__(self) -> None:
        self._now = 0.0

    def __enter__(self) -> FakeClock:
        if _clock.timekeeper.stopped:
            raise RuntimeError("a FakeClock is running already")
        _clock.timekeeper.stop()
        self._now = time.monotonic()
        _clock.now = self.now
        _clock.glance.time = self._now
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _clock.now = time.monotonic
        _clock.glance.time = time.monotonic()
        _clock.timekeeper.resume()

    def now(self) -> float:
        """The time as slotwise sees it."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time, and run what falls due on the way."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds!r}")
        target = self._now + seconds
        while True:
            timer = _clock.timekeeper.pop_due(target)
            if timer is None:
                break
            when, call = timer
            self._move_to(max(when, self._now))
            call()
        self._move_to(target)

    def _move_to(self, when: float) -> None:
        self._now = _clock.glance.time = when


async def settle() -> None:
    """Let every other task of this event loop run until it is blocked.

    Raises:
        RuntimeError: some task never blocks.
    """
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    if ready is None:
        for _ in range(_TURNS_BLINDLY):
            await asyncio.sleep(0)
        return
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        if not ready:
            return
    raise RuntimeError(f"the loop is still busy after {_MOST_TURNS} turns")


def leaked_slots() -> dict[str, str]:
    """What is held or waited for in this process right now, in words, by semaphore.

    All semaphores in memory count, private ones too.
    """
    gc.collect()  # what nobody can reach any more is no leak
    found = {}
    for tracker in [thing for thing in gc.get_objects() if isinstance(thing, Tracker)]:
        with lock:
            stats = tracker.snapshot()
            holders = [
                claim.acquisition_id
                for claim in list(tracker.holders.values())
                if claim.semaphore._tracker is tracker
            ]
        if stats.acquired_slots or stats.waiting:
            name = "a private semaphore" if tracker.name is None else repr(tracker.name)
            held = f" ({', '.join(holders)})" if holders else ""
            found[f"{id(tracker):x}"] = (
                f"{name}: {stats.acquired_slots} of {stats.max_slots} held{held},"
                f" {stats.waiting} waiting"
            )
    return found


if TYPE_CHECKING:
    no_leaked_slots: Any


def __getattr__(name: str) -> object:
    if name != "no_leaked_slots":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest  # only who asks for the fixture needs it

    @pytest.fixture
    def no_leaked_slots() -> Iterator[None]:
        """Fail a test that leaves slots held or waited for that were not before it."""
        before = leaked_slots()
        yield
        leaks = [words for key, words in leaked_slots().items() if key not in before]
        if leaks:
            pytest.fail("slots were leaked:\n" + "\n".join(leaks), pytrace=False)

    globals()[name] = no_leaked_slots
    return no_leaked_slots
