"""Let the timers of other tests rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slotwise._wait import clock


@contextmanager
def no_timers() -> Iterator[None]:
    """Begin without timers, and so without the thread for them; those of other tests rest."""
    timekeeper, resting = clock.timekeeper, []
    while (thread := timekeeper._single.thread) is not None:  # it ends when there are no timers
        with timekeeper._changed:
            resting += timekeeper._timers
            timekeeper._timers = []
            timekeeper._changed.notify()
        thread.join(0.1)
    timekeeper.failure = None
    try:
        yield
    finally:
        with timekeeper._changed:
            timekeeper._timers = sorted(timekeeper._timers + resting)
        if not timekeeper.stopped:
            timekeeper.resume()
