"""Results: what was let in, what has finished, and what the consumer has not taken yet.

At most ``window`` items are between the source and the consumer. With ``ordered`` each
has its place from the moment it is let in, and is taken when its turn comes.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, Final

from slotwise.pipeline.start import Start


class _Nothing(Enum):
    NOTHING = "no result is ready"


NOTHING: Final = _Nothing.NOTHING
_UNFINISHED: Final = object()
_WITHOUT_RESULT: Final = object()


class Results:
    """The way out of a run. Not ``consumed``: nobody takes any, so none is kept."""

    # Between any two calls:
    #   O1  outstanding counts what was let in and has neither failed nor been taken
    #       (nor, if nobody takes results, finished)
    #   O2  waiting counts the results that are ready or have to wait for earlier ones

    def __init__(self, *, window: int, consumed: bool, ordered: bool) -> None:
        self.outstanding = 0
        self.waiting = 0
        self._window = window
        self._consumed = consumed
        self._ordered = ordered and consumed
        self._ready: deque[Any] = deque()
        self._cells: deque[list[Any]] = deque()

    @property
    def have_room(self) -> bool:
        return not self._consumed or self.outstanding < self._window

    def let_in(self, start: Start) -> None:
        self.outstanding += 1
        if self._ordered:
            start.cell = [_UNFINISHED]
            self._cells.append(start.cell)

    def add(self, start: Start, result: Any) -> None:
        """``start`` has succeeded."""
        if start.cell is not None:
            start.cell[0] = result
            self.waiting += 1
        elif self._consumed:
            self._ready.append(result)
            self.waiting += 1
        else:
            self.outstanding -= 1

    def give_up(self, start: Start) -> None:
        """``start`` will have no result."""
        if start.cell is not None:
            start.cell[0] = _WITHOUT_RESULT
        else:
            self.outstanding -= 1

    def take(self) -> Any:
        """The next result, or NOTHING if none is ready."""
        if not self._ordered:
            if not self._ready:
                return NOTHING
            self.outstanding -= 1
            self.waiting -= 1
            return self._ready.popleft()
        while self.first_is_ready:
            result = self._cells.popleft()[0]
            self.outstanding -= 1
            if result is not _WITHOUT_RESULT:
                self.waiting -= 1
                return result
        return NOTHING

    @property
    def first_is_ready(self) -> bool:
        """Whether `take` would find something to do."""
        if not self._ordered:
            return bool(self._ready)
        return bool(self._cells) and self._cells[0][0] is not _UNFINISHED

    def clear(self) -> None:
        """Nobody will take them."""
        self._ready.clear()
        self._cells.clear()
        self.waiting = 0
