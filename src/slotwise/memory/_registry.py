"""Registry: the trackers by name, each until it has been idle for long.

Nothing here scans all names. A timer wheel has each tracker under the second in which it
may be forgotten at the earliest; only those whose second has come are examined, and put
back if they were used meanwhile.

Call all methods in the section, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from slotwise._core.adaptive import Adaptive
from slotwise._core.closing import Closure, Generations
from slotwise._core.results import SemaphoreStats
from slotwise._ledger import NEVER
from slotwise._wait import clock
from slotwise._wait.clock import glance
from slotwise._wait.section import exclusive, lock
from slotwise.memory._acquisition import MemoryAcquisition
from slotwise.memory._tracker import Tracker

# How many due trackers are examined at once: by a caller that creates one, which must not
# be delayed, and by the timer's thread, which must not hold the lock for long.
_AT_ONCE_IN_PASSING = 64
_AT_ONCE_BY_TIMER = 1000

_KEPT_IDLE = 60.0  # seconds: for how long an idle name is not forgotten


class Registry:
    """The named semaphores of this process."""

    # Between any two calls:
    #   R1  no tracker in _trackers is retired
    #   R2  every tracker in _trackers that has not ended is in the wheel exactly once
    #   R3  no second in the wheel is earlier than _next_look

    def __init__(self) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._wheel: dict[int, list[Tracker]] = {}
        self._next_look: float = NEVER
        self._timer: float = NEVER  # when `_on_timer` is called, if there is a thread for it
        self._peak = 0  # the most names since the dict was last copied
        # One table for the holders of all named semaphores: an empty dict for
        # each would be a fifth of what an idle one costs.
        self._holders: dict[Hashable, MemoryAcquisition] = {}
        # For instances whose tracker was retired; other instances are closed with their tracker.
        self.generations = Generations()
        # Names closed everywhere, which may have no tracker, with their value at the time.
        self._closures: dict[str, tuple[Closure, int]] = {}

    def __len__(self) -> int:
        return len(self._trackers)

    def tracker_for(self, name: str, value: int | Adaptive) -> Tracker | None:
        """Return the tracker of ``name``, made if needed; None if another value is in use.

        One that is closed is returned whatever its value.
        """
        tracker = self._trackers.get(name)
        if tracker is not None:
            if tracker.accepts(value) or tracker.closed:
                return tracker
            if not tracker.retire_if_idle():
                return None
            del self._trackers[name]
        glance.time = now = clock.now()
        if self._next_look <= now:
            self._look_at_due(now, _AT_ONCE_IN_PASSING)
        tracker = Tracker(value, name, self, self._holders)
        if self._closures:
            closure = self.closure_of(name)
            if closure is not None:
                tracker.suspend(closure)
        self._trackers[name] = tracker
        self._look_again(tracker, now)
        return tracker

    def get(self, name: str) -> Tracker | None:
        """Return the tracker of ``name``, whatever its value; None if there is none."""
        return self._trackers.get(name)

    def forget(self, tracker: Tracker) -> None:
        """Forget a closed tracker, whose last holder has left: its name can be used again."""
        if tracker.name is not None and self._trackers.get(tracker.name) is tracker:
            del self._trackers[tracker.name]

    def close(self, name: str) -> None:
        """Close the instances of a name that were made so far."""
        self.generations.close(name)

    def close_everywhere(self, name: str, closure: Closure, value: int) -> None:
        """Remember that a name is closed until `reopen`, or until this process ends."""
        tracker = self._trackers.get(name)
        self._closures[name] = closure, value if tracker is None else tracker.value

    def reopen(self, name: str) -> None:
        self._closures.pop(name, None)

    def closure_of(self, name: str) -> Closure | None:
        """Return why a name is closed everywhere; None if it is open."""
        closure, _ = self._closures.get(name, (None, 0))
        return closure

    def stats(self, names: Iterable[str] | None, limit: int) -> dict[str, SemaphoreStats]:
        """Return statistics by name, fullest first. May be called outside the section."""
        from slotwise._core.stats import fullest  # not needed to acquire

        with lock:  # only to copy: there may be very many
            trackers = dict(self._trackers)
            closed = dict(self._closures)
        known = trackers | closed
        wanted = known if names is None else [name for name in names if name in known]
        found = {
            name: trackers[name].snapshot() if name in trackers else _closed(*closed[name])
            for name in wanted
        }
        return fullest(found, limit, idle_too=names is not None)

    # -------------------------------------------------------------- forgetting

    def _look_again(self, tracker: Tracker, idle_since: float) -> None:
        second = int(idle_since + _KEPT_IDLE) + 1
        due = self._wheel.get(second)
        if due is None:
            self._wheel[second] = due = []
            if second < self._next_look:
                self._set_timer(second)
        due.append(tracker)

    def _set_timer(self, second: float) -> None:
        self._next_look = second
        if second < self._timer:  # else the one that is set is early enough
            self._timer = second
            clock.timekeeper.call_at(second, self._on_timer, lazily=True)

    def _look_at_due(self, now: float, at_most: int) -> None:
        """Forget the due trackers that have been idle for long enough."""
        self._peak = max(self._peak, len(self._trackers))
        for second in sorted(self._wheel):
            if second > now or at_most <= 0:
                break
            due = self._wheel[second]
            looked_at = due[-at_most:]
            del due[-at_most:]
            at_most -= len(looked_at)
            if not due:
                del self._wheel[second]
            for tracker in looked_at:
                if not self._forget_if_idle(tracker, now):
                    used = tracker.last_used
                    self._look_again(tracker, used if used + _KEPT_IDLE > now else now)
        self._give_memory_back()
        self._next_look = NEVER
        if self._wheel:
            self._set_timer(min(self._wheel))

    def _forget_if_idle(self, tracker: Tracker, now: float) -> bool:
        """Return True if ``tracker`` doesn't belong in the wheel any more."""
        name = tracker.name
        assert name is not None
        if self._trackers.get(name) is not tracker or tracker.is_ended:
            return True
        if tracker.closed:
            return False
        if tracker.last_used + _KEPT_IDLE > now:
            return False
        # Forgetting a resized semaphore would undo the resize.
        if tracker.is_resized or not tracker.retire_if_idle():
            return False
        del self._trackers[name]
        return True

    def _give_memory_back(self) -> None:
        """Copy the dict when most of it is empty: it never shrinks by itself."""
        if len(self._trackers) * 8 < self._peak:
            self._trackers = dict(self._trackers)
            self._peak = len(self._trackers)

    def _on_timer(self, _when: float) -> None:
        """Called by the timer, outside the section, which it enters for short times only."""
        self._timer = NEVER
        while exclusive(self._look_for_a_while):
            pass

    def _look_for_a_while(self) -> bool:
        """Examine some due trackers; return whether more are due."""
        glance.time = now = clock.now()
        if self._next_look <= now:
            self._look_at_due(now, _AT_ONCE_BY_TIMER)
        elif self._wheel:
            self._set_timer(self._next_look)
        return self._next_look <= now


def _closed(closure: Closure, value: int) -> SemaphoreStats:
    return SemaphoreStats(0, value, 0, True, closure.reason)


registry = Registry()
