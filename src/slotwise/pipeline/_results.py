"""Hold the results of a run until the consumer takes them, in order if asked.

At most ``window`` items are between the source and the consumer. With ``ordered``, each has its
place from the moment it is admitted, and is taken when its turn comes.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, Final

_UNFINISHED: Final = object()
_GIVEN_UP: Final = object()


class WorkItem:
    """An item of the source, the slots it takes, the worker of its group, and its result."""

    __slots__ = ("item", "key", "raised", "result", "weight", "worker")

    raised: type[BaseException]  # what its work raised; not set if it succeeded

    def __init__(self, item: Any, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.worker = 0  # the number of the worker of its group
        self.key: Any = None
        self.result: Any = _UNFINISHED  # kept here only if results are taken in order


class _Nothing(Enum):
    NOTHING = "no result is ready"


NOTHING: Final = _Nothing.NOTHING


class Results:
    """The results of a run; none are kept unless they are ``consumed``."""

    # Between any two calls:
    #   O1  outstanding counts what was admitted and has neither failed nor been taken
    #       (nor, if nobody takes results, finished)
    #   O2  waiting counts the results that are ready or have to wait for earlier ones
    #   O3  with ordered, places has those that are outstanding, in order, and at most window
    #       that were given up; the first is not one of these

    def __init__(self, *, window: int, consumed: bool, ordered: bool) -> None:
        self.outstanding = 0
        self.waiting = 0
        self._window = window
        self._consumed = consumed
        self._ordered = ordered and consumed
        self._ready: deque[Any] = deque()
        self._places: deque[WorkItem] = deque()

    @property
    def have_room(self) -> bool:
        return not self._consumed or self.outstanding < self._window

    def let_in(self, work: WorkItem) -> None:
        self.outstanding += 1
        if self._ordered:
            self._places.append(work)

    def add(self, work: WorkItem, result: Any) -> None:
        """Note that ``work`` has succeeded."""
        if not self._consumed:
            self.outstanding -= 1
            return
        self.waiting += 1
        if self._ordered:
            work.result = result
        else:
            self._ready.append(result)

    def give_up(self, work: WorkItem) -> None:
        """Note that ``work`` will have no result."""
        self.outstanding -= 1
        if self._ordered:
            work.result = _GIVEN_UP
            self._leave_places()
            if len(self._places) > self.outstanding + self._window:
                self._places = deque(each for each in self._places if each.result is not _GIVEN_UP)

    def _leave_places(self) -> None:
        while self._places and self._places[0].result is _GIVEN_UP:
            self._places.popleft()

    def take(self) -> Any:
        """Return the next result, or NOTHING if none is ready."""
        ready: deque[Any] = self._places if self._ordered else self._ready
        if not ready or (self._ordered and ready[0].result is _UNFINISHED):
            return NOTHING
        self.outstanding -= 1
        self.waiting -= 1
        if not self._ordered:
            return ready.popleft()
        result = ready.popleft().result
        if ready and ready[0].result is _GIVEN_UP:
            self._leave_places()
        return result

    @property
    def first_is_ready(self) -> bool:
        """Whether `take` would find something."""
        if not self._ordered:
            return bool(self._ready)
        return bool(self._places) and self._places[0].result is not _UNFINISHED

    def clear(self) -> None:
        """Drop all results: the run is over."""
        self._ready.clear()
        self._places.clear()
        self.waiting = 0
