"""The names: which tracker stands behind one, and when an idle one is forgotten.

Nothing here is scanned as a whole. Each tracker stands in the wheel under the
second in which it may be forgotten at the earliest; only those whose second
has come are looked at, and put back if they were used meanwhile.

All methods want to be called in the section, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from slotwise._core.closing import Closure, Generations
from slotwise._core.results import SemaphoreStats
from slotwise._ledger import NEVER
from slotwise._wait import clock
from slotwise._wait.clock import glance
from slotwise._wait.section import exclusive, lock
from slotwise.memory._acquisition import MemoryClaim
from slotwise.memory._tracker import Tracker

# How many due trackers are looked at in one go: by somebody who makes a new
# one, who must not notice, and by the timer's thread, which must not keep the lock.
_AT_ONCE_IN_PASSING = 64
_AT_ONCE_BY_TIMER = 1000


class Registry:
    """The named semaphores of this process."""

    # Between any two calls:
    #   R1  no tracker in _trackers is retired
    #   R2  every tracker in _trackers that has not ended stands in the wheel exactly once
    #   R3  no second in the wheel is earlier than _next_look

    def __init__(self, empty_queue_max_ttl: float = 60.0) -> None:
        self.empty_queue_max_ttl = empty_queue_max_ttl
        self._trackers: dict[str, Tracker] = {}
        self._wheel: dict[int, list[Tracker]] = {}
        self._next_look: float = NEVER
        self._timer: float = NEVER  # when `_on_timer` is called, if there is a thread for it
        self._peak = 0  # how many names there have been since memory was given back
        # One table for the holders of all named semaphores: an empty dict for
        # each would be a fifth of what an idle one costs.
        self._holders: dict[Hashable, MemoryClaim] = {}
        # Of instances whose tracker was retired; those of the others close with theirs.
        self.generations = Generations()
        self._closures: dict[str, Closure] = {}

    def __len__(self) -> int:
        return len(self._trackers)

    def tracker_for(self, name: str, value: int) -> Tracker | None:
        """The tracker of ``name``, made if there is none; None if another value is in use."""
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
        closure = self._closures.get(name)
        if closure is not None:
            tracker.suspend(closure)
        self._trackers[name] = tracker
        self._look_again(tracker, now)
        return tracker

    def get(self, name: str) -> Tracker | None:
        """The tracker of ``name``, whatever its value, if there is one."""
        return self._trackers.get(name)

    def forget(self, tracker: Tracker) -> None:
        """Give the name of a closed tracker free; the last holder has left."""
        if tracker.name is not None and self._trackers.get(tracker.name) is tracker:
            del self._trackers[tracker.name]

    def close(self, name: str) -> None:
        """Note that the instances of a name made so far are closed."""
        self.generations.close(name)

    def close_everywhere(self, name: str, closure: Closure) -> None:
        """Note that a name is closed until `reopen`, for the life of this process."""
        self._closures[name] = closure

    def reopen(self, name: str) -> None:
        self._closures.pop(name, None)

    def closure_of(self, name: str) -> Closure | None:
        """Why a name is closed everywhere, if it is."""
        return self._closures.get(name)

    def stats(self, names: Iterable[str] | None, limit: int) -> dict[str, SemaphoreStats]:
        """Statistics by name, fullest first. May be called anywhere."""
        with lock:
            if names is None:
                found = {name: tracker.snapshot() for name, tracker in self._trackers.items()}
            else:
                found = {
                    name: self._trackers[name].snapshot()
                    for name in names
                    if name in self._trackers
                }
        shown = [
            (name, stats)
            for name, stats in found.items()
            if names is not None or stats.acquired_slots or stats.waiting
        ]
        shown.sort(key=lambda item: (-item[1].acquired_percent, -item[1].waiting, item[0]))
        return dict(shown[:limit])

    # -------------------------------------------------------------- forgetting

    def _look_again(self, tracker: Tracker, idle_since: float) -> None:
        second = int(idle_since + self.empty_queue_max_ttl) + 1
        due = self._wheel.get(second)
        if due is None:
            self._wheel[second] = due = []
            if second < self._next_look:
                self._set_timer(second)
        due.append(tracker)

    def _set_timer(self, second: float) -> None:
        self._next_look = second
        if second < self._timer:  # else the one that is set rings early enough
            self._timer = second
            clock.timekeeper.call_at(second, self._on_timer, lazily=True)

    def _look_at_due(self, now: float, at_most: int) -> None:
        """Forget those of the due trackers that have been idle for long enough."""
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
                    self._look_again(
                        tracker, used if used + self.empty_queue_max_ttl > now else now
                    )
        self._give_memory_back()
        self._next_look = NEVER
        if self._wheel:
            self._set_timer(min(self._wheel))

    def _forget_if_idle(self, tracker: Tracker, now: float) -> bool:
        """True if ``tracker`` has no business in the wheel any more."""
        name = tracker.name
        assert name is not None
        if self._trackers.get(name) is not tracker or tracker.is_ended:
            return True
        if tracker.closed:
            return False
        if tracker.last_used + self.empty_queue_max_ttl > now:
            return False
        # Forgetting a resized semaphore would undo the resize.
        if tracker.is_resized or not tracker.retire_if_idle():
            return False
        del self._trackers[name]
        return True

    def _give_memory_back(self) -> None:
        """A dict never shrinks by itself: copy it when most of it is empty."""
        if len(self._trackers) * 8 < self._peak:
            self._trackers = dict(self._trackers)
            self._peak = len(self._trackers)

    def _on_timer(self, _when: float) -> None:
        """Called by the timer, outside the section; it goes there for short times only."""
        self._timer = NEVER
        while exclusive(self._look_for_a_while):
            pass

    def _look_for_a_while(self) -> bool:
        """Whether there is more to look at now."""
        glance.time = now = clock.now()
        if self._next_look <= now:
            self._look_at_due(now, _AT_ONCE_BY_TIMER)
        elif self._wheel:
            self._set_timer(self._next_look)
        return self._next_look <= now


registry = Registry()
