"""Hold the results of a run until the consumer takes them, in order if asked.

At most ``window`` items are between the source and the consumer. With ``ordered``, each has its
place from the moment it is admitted, and is taken when its turn comes.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, Final

from slotwise.pipeline._work_item import UNFINISHED, WorkItem


class _Nothing(Enum):
    NOTHING = "no result is ready"


NOTHING: Final = _Nothing.NOTHING
_GIVEN_UP: Final = object()


class Results:
    """The results of a run; none are kept unless they are ``consumed``."""

    # Between any two calls:
    #   O1  outstanding counts what was admitted and has neither failed nor been taken
    #       (nor, if nobody takes results, finished)
    #   O2  waiting counts the results that are ready or have to wait for earlier ones
    #   O3  with ordered, places has those that are outstanding, in order, and at most window
    #       that were given up; the first is not one of these, so nothing waits until the consumer
    #       notices it

    def __init__(self, *, window: int, consumed: bool, ordered: bool) -> None:
        self.outstanding = 0
        self.waiting = 0
        self._window = window
        self._consumed = consumed
        self._ordered = ordered and consumed
        self._ready: deque[Any] = deque()
        self._places: deque[WorkItem] = deque()
        self._given_up = 0  # in places

    @property
    def have_room(self) -> bool:
        return not self._consumed or self.outstanding < self._window

    def let_in(self, work: WorkItem) -> None:
        self.outstanding += 1
        if self._ordered:
            self._places.append(work)

    def add(self, work: WorkItem, result: Any) -> None:
        """Note that ``work`` has succeeded."""
        if self._ordered:
            work.result = result
            self.waiting += 1
        elif self._consumed:
            self._ready.append(result)
            self.waiting += 1
        else:
            self.outstanding -= 1

    def give_up(self, work: WorkItem) -> None:
        """Note that ``work`` will have no result."""
        self.outstanding -= 1
        if self._ordered:
            work.result = _GIVEN_UP
            self._given_up += 1
            self._leave_places()

    def _leave_places(self) -> None:
        """Remove places that were given up: those at the front, or all if they are many."""
        places = self._places
        while places and places[0].result is _GIVEN_UP:
            places.popleft()
            self._given_up -= 1
        if self._given_up > self._window:
            self._places = deque(work for work in places if work.result is not _GIVEN_UP)
            self._given_up = 0

    def take(self) -> Any:
        """Return the next result, or NOTHING if none is ready."""
        if not self._ordered:
            if not self._ready:
                return NOTHING
            self.outstanding -= 1
            self.waiting -= 1
            return self._ready.popleft()
        places = self._places
        if not places or places[0].result is UNFINISHED:
            return NOTHING
        self.outstanding -= 1
        self.waiting -= 1
        result = places.popleft().result
        if self._given_up:
            self._leave_places()
        return result

    @property
    def first_is_ready(self) -> bool:
        """Whether `take` would find something."""
        if not self._ordered:
            return bool(self._ready)
        return bool(self._places) and self._places[0].result is not UNFINISHED

    def clear(self) -> None:
        """Drop all results: the run is over."""
        self._ready.clear()
        self._places.clear()
        self._given_up = 0
        self.waiting = 0
