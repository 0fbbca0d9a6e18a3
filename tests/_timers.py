"""Let the timers of other tests rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slotwise._wait import clock
from slotwise._wait.clock import Timekeeper


def timers() -> list[Any]:
    """The timers there are, as a heap."""
    return clock.timekeeper._timers


def _change(act: Callable[[list[Any]], object]) -> None:
    """Do something with the timers there are, and let their thread see it."""
    with (changed := clock.timekeeper._changed):
        act(timers())
        changed.notify()


def end_timers(timekeeper: Timekeeper) -> None:
    """Drop those of a timekeeper that nobody else has, and wait for its thread."""
    with (changed := timekeeper._changed):
        timekeeper._timers.clear()
        changed.notify()
    if (thread := timekeeper._single.thread) is not None:  # it ends when there are no timers
        thread.join(60)


def count_timers() -> int:
    counts: list[int] = []
    _change(lambda timers: counts.append(len(timers)))
    return counts[0]


@contextmanager
def no_timers() -> Iterator[None]:
    """Begin without timers, and so without the thread for them; those of other tests rest."""
    timekeeper, resting = clock.timekeeper, []

    def rest(timers: list[Any]) -> None:
        resting.extend(timers)
        timers.clear()

    def go_on(timers: list[Any]) -> None:
        timers[:] = sorted(timers + resting)

    while (thread := timekeeper._single.thread) is not None:  # it ends when there are no timers
        _change(rest)
        thread.join(0.1)
    timekeeper.failure = None
    try:
        yield
    finally:
        _change(go_on)
        if not timekeeper.stopped:
            timekeeper.resume()
