"""The tracker behind a MemorySemaphore: found by name, asked for its state, resized, closed.

A tracker that nobody uses retires, and its name may get another one; an instance that still has
the retired one is attached to the new one when it needs a slot. The registry knows all trackers; a
tracker knows what is held and who waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotwise._core.adaptive import Adaptive
from slotwise._core.closing import Closure
from slotwise._core.control import Verb
from slotwise._core.messages import rules_conflict, too_many_slots, value_conflict
from slotwise._core.results import SemaphoreStats
from slotwise._wait.deliveries import deliver_posted
from slotwise._wait.section import exclusive, lock
from slotwise.errors import ValueConflict
from slotwise.memory._registry import registry
from slotwise.memory._tracker import Tracker

if TYPE_CHECKING:
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
        tracker = Tracker(value, name, registry)
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
    adaptation = None if tracker is None else tracker.adaptation
    adaptive = None if adaptation is None else adaptation.options
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


def control(semaphore: MemorySemaphore, verb: Verb, args: Sequence[Any]) -> Any:
    """Change what all instances share, whatever value this one was made with."""
    try:
        return exclusive(_apply, semaphore, verb, args)
    finally:
        deliver_posted()


def _apply(semaphore: MemorySemaphore, verb: Verb, args: Sequence[Any]) -> Any:
    if verb in ("close_everywhere", "reopen"):
        closure = Closure(args[0]) if verb == "close_everywhere" else None
        switched = _noted(semaphore, closure)
        if switched is not None and closure is not None:
            switched.suspend(closure)
        elif switched is not None:
            switched.resume()
        return None
    moves = verb in ("freeze", "thaw")  # which depends on the rules it was made with
    tracker = (None if moves else known(semaphore)) or current(semaphore)
    if tracker.closed:
        raise tracker.closed_error(tracker.closure)
    if tracker is not semaphore._tracker:
        semaphore._attach(tracker)
    declared = (semaphore._value,) if verb == "resize" else ()
    return getattr(tracker, f"apply_{verb}")(*args, *declared)


def _noted(semaphore: MemorySemaphore, closure: Closure | None) -> Tracker | None:
    """Note in the registry that a name is closed everywhere, or no longer; return its tracker."""
    name = semaphore._name
    if name is None:
        return semaphore._tracker
    if closure is None:
        registry.reopen(name)
    else:
        registry.close_everywhere(name, closure, semaphore._value)
    return registry.get(name)


def close_here(semaphore: MemorySemaphore) -> None:
    """Close all instances of the name, which here are those of this process."""

    def close() -> None:
        tracker: Tracker | None = semaphore._tracker
        if semaphore._name is not None:
            registry.close(semaphore._name)
            tracker = registry.get(semaphore._name)
        if tracker is not None:
            tracker.end()

    exclusive(close)
    deliver_posted()
