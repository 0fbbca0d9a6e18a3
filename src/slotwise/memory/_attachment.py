"""The tracker behind a MemorySemaphore: found by name, asked for its state, resized, closed.

A tracker that nobody uses retires, and its name may get another one; an instance that still has
the retired one is attached to the new one when it needs a slot. The registry knows all trackers; a
tracker knows what is held and who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slotwise._core.adaptive import Adaptive
from slotwise._core.messages import rules_conflict, too_many_slots, value_conflict
from slotwise._core.results import SemaphoreStats
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted
from slotwise._wait.section import exclusive, lock
from slotwise.errors import ValueConflict
from slotwise.memory._adaptive import AdaptiveTracker, new_tracker
from slotwise.memory._registry import registry
from slotwise.memory._tracker import Tracker

if TYPE_CHECKING:
    from slotwise._core.closing import Closure
    from slotwise.memory._semaphore import MemorySemaphore

# For an instance that must not use the quick lane: this tracker never has free slots.
DETACHED = Tracker(1)
DETACHED.retire_if_idle()


def attach(semaphore: MemorySemaphore, name: str, value: int | Adaptive) -> None:
    """Attach a new instance to the tracker of its name, *in the section*.

    If the values conflict, or the name is closing, that is a tracker that can't be used:
    the instance asks again when it needs a slot.
    """
    tracker = registry.tracker_for(name, value)
    if tracker is None or (tracker.closed and (tracker.is_ended or not tracker.accepts(value))):
        tracker = new_tracker(value, name, registry)
        tracker.retire_if_idle()
    semaphore._attach(tracker)


def current(semaphore: MemorySemaphore) -> Tracker:
    """Return the living tracker behind the name, *in the section*.

    Look-up and request are one step there: a tracker cannot be forgotten
    in between.

    Raises:
        ValueConflict: it is in use with another value.
        SemaphoreClosed: it is closed, and its last holder has not left.
    """
    attached = semaphore._tracker
    if not attached.retired:
        return attached
    assert semaphore._name is not None  # private trackers never retire
    if is_ended(semaphore):
        raise attached.closed_error(attached.closure)
    tracker = registry.tracker_for(semaphore._name, semaphore._adaptive or semaphore._value)
    if tracker is None:
        raise _conflict(semaphore)
    if tracker.closed:
        raise tracker.closed_error(tracker.closure)
    semaphore._attach(tracker)
    return tracker


def known(semaphore: MemorySemaphore) -> Tracker | None:
    """Return the tracker behind the name, whatever its value, if there is one."""
    if semaphore._name is not None and semaphore._tracker.retired:
        return registry.get(semaphore._name)
    return semaphore._tracker


def _conflict(semaphore: MemorySemaphore) -> ValueConflict:
    stats, tracker = stats_of(semaphore), known(semaphore)
    adaptive = tracker.adaptation.options if isinstance(tracker, AdaptiveTracker) else None
    if adaptive is not None or semaphore._adaptive is not None:
        return rules_conflict(semaphore._name, semaphore._adaptive, adaptive, stats.max_slots)
    return value_conflict(
        semaphore._name,
        semaphore._value,
        value=stats.max_slots,
        held=stats.acquired_slots,
        waiting=stats.waiting,
    )


# -------------------------------------------------------------------- its state


def is_ended(semaphore: MemorySemaphore) -> bool:
    """Whether this instance was closed for good."""
    tracker = semaphore._tracker
    if tracker.retired:
        return tracker.generation is not None and tracker.generation.closed
    return tracker.is_ended


def is_locked(semaphore: MemorySemaphore) -> bool:
    """Whether a newcomer would have to wait, or be refused."""
    with lock:
        tracker = known(semaphore)
        if tracker is None or is_ended(semaphore):
            return is_ended(semaphore) or _closure_of(semaphore) is not None
        return (
            tracker.closed
            or bool(tracker.line)
            or bool(tracker.waiting)
            or tracker.in_use >= tracker.value
            or tracker.paused_for() > 0
        )


def estimate(semaphore: MemorySemaphore, slots: int) -> float | None:
    """When a newcomer would get its slots, *in the section*; None if unknown."""
    tracker = known(semaphore)
    if is_ended(semaphore) or _closure_of(semaphore) is not None:
        return None
    if tracker is None or tracker.retired:
        if slots > semaphore._value:
            raise too_many_slots(semaphore._title, slots, semaphore._value)
        return 0.0
    return tracker.estimate(slots)


def stats_of(semaphore: MemorySemaphore) -> SemaphoreStats:
    tracker = known(semaphore)
    if tracker is not None:
        return tracker.snapshot()
    closure = _closure_of(semaphore)
    if closure is None:
        return SemaphoreStats(0, semaphore._value)
    return SemaphoreStats(0, semaphore._value, 0, True, closure.reason)


def _closure_of(semaphore: MemorySemaphore) -> Closure | None:
    return None if semaphore._name is None else registry.closure_of(semaphore._name)


# -------------------------------------------------------------------- its changes


def resize(semaphore: MemorySemaphore, value: int) -> None:
    """Change what all instances share, whatever value this one was made with; *in the section*."""
    tracker = known(semaphore) or current(semaphore)
    tracker.change_value(value, semaphore._value)
    if tracker is not semaphore._tracker:
        semaphore._attach(tracker)


def pause(semaphore: MemorySemaphore, seconds: float) -> None:
    """Grant nothing to any instance for that long, *in the section*."""
    tracker = known(semaphore) or current(semaphore)
    if tracker.closed:
        raise tracker.closed_error(tracker.closure)
    tracker.begin_pause(seconds, clock.now())


def switch(
    semaphore: MemorySemaphore,
    change: Callable[[Tracker], None],
    note: Callable[[str], object],
) -> None:
    """Close or open the tracker of the name, and note it in the registry."""

    def apply() -> None:
        tracker: Tracker | None = semaphore._tracker
        if semaphore._name is not None:
            note(semaphore._name)
            tracker = registry.get(semaphore._name)
        if tracker is not None:
            change(tracker)

    exclusive(apply)
    deliver_posted()
