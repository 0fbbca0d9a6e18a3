"""Read the ages of one directory's names with every worker that has nothing else to do.

The kernel serves many ages of a directory at a time, but removes one name after the
other. So one worker, the *owner* of the batch, deletes, and the others read ahead of
it. They stay only so far ahead that an age is still believed when its file goes.

Nothing here deletes, and nothing here decides what is old: `files` does.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from slotwise.purge._tree import Node

# For how long an age is believed that was read ahead, and what the owner can delete in
# the time that is read ahead: the rest of it is for a delay on the way.
BELIEVED = 0.2
_AHEAD = 0.15


class Old(NamedTuple):
    """A name whose file was old when its age was read."""

    name: str
    found: os.stat_result
    believed_until: float


class Stoppable(Protocol):
    """What the owner looks at between two names."""

    stopping: bool


class Ages:
    """The names of one batch, whose ages are read by its owner and by idle workers."""

    # Between any two changes, which are made under a lock of the batch's own:
    #   A1  every name is in _names, in the hands of a reader, in _old, or was handed out
    #   A2  readers take no name while what is read ahead would not go in time
    #   A3  the owner doesn't leave while somebody reads: readers use its descriptor

    def __init__(self, node: Node, names: list[str]) -> None:
        self.node = node
        self.kept = False  # some name stays
        self.offered = False  # the workers know that it wants readers
        self._names = deque(names)
        self._old: deque[Old] = deque()
        self._reading = 0
        self._seen = 0
        self._seen_old = 0
        self._paused = False
        self._seconds_per_deletion: float | None = None
        self._changed = threading.Condition(threading.Lock())

    # ------------------------------------------------------------- for readers

    def wanted_readers(self) -> int:
        """How many more workers may read now; without the lock, a good guess."""
        if not self._names:
            return 0
        # Until the first age is known every name may be old, and every deletion slow.
        share = (self._seen_old + 1) / (self._seen + 1)
        most = 8.0
        if self._seconds_per_deletion is not None:
            most = max(2.0, _AHEAD / self._seconds_per_deletion)
        ahead = len(self._old) + self._reading * share
        if self._paused and ahead > most / 2:
            return 0
        self._paused = ahead + share > most
        return 0 if self._paused else min(len(self._names), int((most - ahead) / share))

    def take(self) -> str | None:
        """Return a name to read, whose outcome `put` takes; None if there is nothing to do."""
        with self._changed:
            return self._take() if self.wanted_readers() else None

    def _take(self) -> str:
        self._reading += 1
        return self._names.popleft()

    def put(self, old: Old | None, *, kept: bool, more: bool = False) -> str | None:
        """Note what became of a name that was taken; return the next one if ``more``."""
        with self._changed:
            self._reading -= 1
            self._seen += 1
            self.kept = self.kept or kept
            if old is not None:
                self._seen_old += 1
                self._old.append(old)
            if old is not None or not self._reading:
                self._changed.notify()
            return self._take() if more and self.wanted_readers() else None

    # ----------------------------------------------------------- for the owner

    def old_ones(
        self,
        read: Callable[[Ages, str], object],
        call_readers: Callable[[Ages, int], None],
        run: Stoppable,
    ) -> Iterator[Old]:
        """Give the old names one by one, and read ages oneself while there is none.

        ``read`` reads one age and puts the outcome here; ``call_readers`` wakes so many
        idle workers.
        """
        try:
            while not run.stopping:
                name = old = None
                with self._changed:
                    while not self._old and not self._names and self._reading:
                        self._changed.wait()
                    if self._old:
                        old = self._old.popleft()
                    elif self._names:
                        name = self._take()
                    else:
                        return
                    wanted = self.wanted_readers()
                if wanted:
                    call_readers(self, wanted)
                if name is not None:
                    read(self, name)
                if old is not None:
                    began = time.perf_counter()
                    yield old
                    self._note_deletion(time.perf_counter() - began)
        finally:
            with self._changed:
                self._names.clear()
                while self._reading:
                    self._changed.wait()

    def _note_deletion(self, seconds: float) -> None:
        before = self._seconds_per_deletion
        # Half of the weight for the last one: what it waited for may be over, or go on.
        self._seconds_per_deletion = seconds if before is None else (before + seconds) / 2
