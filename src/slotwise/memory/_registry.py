"""Registry: the trackers by name.

A name ends with its last object and its last acquisition: nothing has to look for idle ones. What
would be lost with it, a changed value, a pause or what was taken of a rate, is kept for as long as
it matters.

Call all methods in the section, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from slotwise._core.closing import Closure
from slotwise._core.paths import TierSpec, is_semaphore
from slotwise._core.stats import SemaphoreStats
from slotwise._wait.section import lock
from slotwise.memory._tracker import Tracker, kept

# How many of those that are kept are looked at for each new name, so that they become fewer.
_LOOKS = 2

# Semaphores and tiers of one name have nothing to do with each other.
_Key = tuple[bool, str]


class Registry:
    """The named limits of this process."""

    def __init__(self) -> None:
        self._trackers: WeakValueDictionary[_Key, Tracker] = WeakValueDictionary()
        # Names that are closed everywhere, which here means in this process, for its whole life;
        # with the value that a semaphore had.
        self._closures: dict[_Key, tuple[Closure, int]] = {}
        # The table of holders of each name, which keeps the tracker while somebody holds something,
        # perhaps by its id alone. Some are those of names that have ended.
        self._holders: dict[_Key, dict[Hashable, Any]] = {}

    def __len__(self) -> int:
        return len(self._trackers)

    def tracker_for(self, name: str, specs: Sequence[TierSpec]) -> Tracker:
        """Return the tracker of ``name``, made if needed.

        Raises:
            ValueConflict: tiers of that name are other ones. (Whoever asks for a slot of a
                semaphore declares its value.)
        """
        key = is_semaphore(specs), name
        tracker = self._trackers.get(key)
        if tracker in kept:
            tracker.let_go()
            tracker = None
            tracker = self._trackers.get(key)  # if it is kept, or has other objects
        if tracker is None or tracker.ended:
            self._let_go()
            predecessor = None if tracker is None else tracker.last_held
            holders: dict[Hashable, Any] = {}
            self._holders[key] = holders
            self._trackers[key] = tracker = Tracker(specs, name, holders, predecessor)
            if key in self._closures:
                tracker.suspend(self._closures[key][0])
        elif not key[0] and not tracker.ledger.accepts(tuple(specs)):
            raise tracker.ledger.conflict(name, specs)
        return tracker

    def current(self, tracker: Tracker) -> Tracker:
        """Return the tracker that a name has now; it may be a later one."""
        if tracker.name is None:
            return tracker
        return self._trackers.get((tracker.is_semaphore, tracker.name), tracker)

    def _let_go(self) -> None:
        """Look at some that are kept, the others at other times."""
        for tracker in list(islice(kept, _LOOKS)):
            del kept[tracker]
            kept[tracker] = None
            tracker.let_go()
        for key in list(islice(self._holders, _LOOKS)):
            holders = self._holders.pop(key)
            if holders or key in self._trackers:
                self._holders[key] = holders

    def close_everywhere(self, tracker: Tracker, closure: Closure) -> None:
        """Remember that a name is closed until `reopen`, or until this process ends."""
        tracker = self.current(tracker)
        if tracker.name is not None:
            value = tracker.value if tracker.is_semaphore else 0
            self._closures[tracker.is_semaphore, tracker.name] = closure, value
        tracker.suspend(closure)

    def reopen(self, tracker: Tracker) -> None:
        tracker = self.current(tracker)
        if tracker.name is not None:
            self._closures.pop((tracker.is_semaphore, tracker.name), None)
        tracker.resume()

    def stats(self, names: Iterable[str] | None, limit: int) -> dict[str, SemaphoreStats]:
        """Return statistics of semaphores, fullest first. May be called outside the section."""
        from slotwise._core.paths import SEMAPHORE_PATH
        from slotwise._core.stats import fullest  # not needed to acquire

        with lock:  # only to copy: there may be very many
            trackers = {
                name: each
                for (of_slots, name), each in self._trackers.items()
                if of_slots and (not each.ended or each.is_held())
            }
            closed = {name: each for (of_slots, name), each in self._closures.items() if of_slots}
        known = {**closed, **trackers}
        wanted = known if names is None else [name for name in names if name in known]
        found = {
            name: trackers[name].stats_of(SEMAPHORE_PATH).tightest()
            if name in trackers
            else _closed(*closed[name])
            for name in wanted
        }
        return fullest(found, limit, idle_too=names is not None)


def _closed(closure: Closure, value: int) -> SemaphoreStats:
    return SemaphoreStats(0, value, 0, True, closure.reason)


registry = Registry()
