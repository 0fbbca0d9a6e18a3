"""Helpers for tests of code that uses slotwise: time by hand, and leak checks.

Nothing here is imported by the rest of the package. pytest is needed only for
the fixtures.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from slotwise import _clock

__all__ = ["FakeClock", "settle"]

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
