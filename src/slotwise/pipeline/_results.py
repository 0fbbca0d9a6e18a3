"""Hold the results of a run until the consumer takes them, in order if asked.

At most ``window`` items are between the source and the consumer. With ``ordered`` each
has its place from the moment it is let in, and is taken when its turn comes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from typing import Any, Final

from slotwise.pipeline._work_item import WorkItem


class _Nothing(Enum):
    NOTHING = "no result is ready"


NOTHING: Final = _Nothing.NOTHING
_UNFINISHED: Final = object()


class Results:
    """The results of a run; none are kept unless they are ``consumed``."""

    # Between any two calls:
    #   O1  outstanding counts what was let in and has neither failed nor been taken
    #       (nor, if nobody takes results, finished)
    #   O2  waiting counts the results that are ready or have to wait for earlier ones
    #   O3  with ordered, places has those that are outstanding and no others: one that
    #       fails leaves its place itself, so nobody waits for the consumer to notice it

    def __init__(self, *, window: int, consumed: bool, ordered: bool) -> None:
        self.outstanding = 0
        self.waiting = 0
        self._window = window
        self._consumed = consumed
        self._ordered = ordered and consumed
        self._ready: deque[Any] = deque()
        # Not a dict: finding its first key is slow after many removals at the front.
        self._places: OrderedDict[WorkItem, Any] = OrderedDict()

    @property
    def have_room(self) -> bool:
        return not self._consumed or self.outstanding < self._window

    def let_in(self, work: WorkItem) -> None:
        self.outstanding += 1
        if self._ordered:
            self._places[work] = _UNFINISHED

    def add(self, work: WorkItem, result: Any) -> None:
        """``work`` has succeeded."""
        if self._ordered:
            self._places[work] = result
            self.waiting += 1
        elif self._consumed:
            self._ready.append(result)
            self.waiting += 1
        else:
            self.outstanding -= 1

    def give_up(self, work: WorkItem) -> None:
        """``work`` will have no result."""
        self.outstanding -= 1
        if self._ordered:
            del self._places[work]

    def take(self) -> Any:
        """Return the next result, or NOTHING if none is ready."""
        if not (self.first_is_ready if self._ordered else self._ready):
            return NOTHING
        self.outstanding -= 1
        self.waiting -= 1
        return self._places.popitem(last=False)[1] if self._ordered else self._ready.popleft()

    @property
    def first_is_ready(self) -> bool:
        """Whether `take` would find something."""
        if not self._ordered:
            return bool(self._ready)
        return next(iter(self._places.values()), _UNFINISHED) is not _UNFINISHED

    def clear(self) -> None:
        """Drop all results: the run is over."""
        self._ready.clear()
        self._places.clear()
        self.waiting = 0
