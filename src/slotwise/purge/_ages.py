"""Read the ages of one directory's names with every worker that has nothing else to do.

The kernel can look up many ages in a directory at once, but removes names one at a
time. So one worker, the *owner* of the batch, deletes, and the others read ahead of it, just far
enough that an age is still fresh when its file is deleted.

Nothing here deletes, and nothing here decides what is old: `_files` does.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from slotwise.purge._tree import DirectoryNode

# For how long an age that was read ahead counts as fresh, and for how much of that time deletions
# are read ahead; the rest allows for delays.
FRESH_FOR = 0.2
_AHEAD = 0.15
# Readers come in bursts: while an age is read, the kernel removes nothing from the directory, so
# many reads at once cost one wait. The next burst begins when at most this many old names of the
# last one are left.
_FEW_LEFT = 2
# How many old names are read ahead before it is known how long a deletion takes.
_FIRST_BURST = 8


class OldFile(NamedTuple):
    """A name whose file was old when its age was read."""

    name: str
    found: os.stat_result
    fresh_until: float


class Stoppable(Protocol):
    """What the owner looks at between two names."""

    stopping: bool


class DeletionStatistics:
    """What a worker has measured: the share of old files, and how long a deletion takes.

    It is kept from batch to batch: the next names are most likely similar.
    """

    __slots__ = ("most_ahead", "seconds_per_deletion", "seen", "seen_old")

    def __init__(self) -> None:
        # Until the first age is known, every name counts as old.
        self.seen = 1.0
        self.seen_old = 1.0
        self.seconds_per_deletion: float | None = None
        self.most_ahead: float = _FIRST_BURST  # how many old names may be read ahead

    def note_deletion(self, seconds: float) -> None:
        before = self.seconds_per_deletion
        # The last one has a quarter of the weight: what it waited for may be over, or may continue.
        seconds = seconds if before is None else (3 * before + seconds) / 4
        self.seconds_per_deletion = seconds
        self.most_ahead = max(_FEW_LEFT, _AHEAD / seconds)

    def begin_batch(self) -> None:
        """Reduce the weight of what was seen so far."""
        self.seen_old = max(self.seen_old / 2, 1.0)
        self.seen = max(self.seen / 2, self.seen_old)


class Ages:
    """The names of one batch, whose ages are read by its owner and by idle workers."""

    # Between any two changes, which are made under a lock of the batch's own:
    #   A1  every name is in _names, in the hands of a reader, in _old, or was handed out
    #   A2  readers take no name while what was read ahead would not be deleted in time
    #   A3  the owner doesn't leave while somebody reads: readers use its descriptor

    def __init__(
        self, node: DirectoryNode, names: list[str], statistics: DeletionStatistics
    ) -> None:
        self.node = node
        self.kept = False  # some name is kept
        self.offered = False  # the workers know that it wants readers
        self._names = deque(names)
        self._old: deque[OldFile] = deque()
        self._reading = 0
        self._statistics = statistics
        self._burst = 0  # how many more names this burst takes
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._owner_waits = False
        statistics.begin_batch()

    # ------------------------------------------------------------- for readers

    def wanted_readers(self) -> int:
        """How many more names may be read now; without the lock, an estimate."""
        statistics = self._statistics
        share, most = statistics.seen_old / statistics.seen, statistics.most_ahead
        ahead = len(self._old) + self._reading * share
        if ahead >= most:
            self._burst = 0
        elif not self._burst and ahead <= _FEW_LEFT:
            self._burst = max(1, int((most - ahead) / share))
        return min(self._burst, len(self._names))

    def take(self) -> str | None:
        """Return a name to read, whose outcome `put` takes; None if there is nothing to do."""
        with self._lock:
            return self._take() if self.wanted_readers() else None

    def _take(self) -> str:
        self._reading += 1
        self._burst = max(0, self._burst - 1)
        return self._names.popleft()

    def put(self, old: OldFile | None, *, kept: bool, more: bool = False) -> str | None:
        """Note the result for a name that was taken; return the next name if ``more``."""
        with self._lock:
            self._reading -= 1
            self._statistics.seen += 1
            if kept:
                self.kept = True
            if old is not None:
                self._statistics.seen_old += 1
                self._old.append(old)
            if self._owner_waits and (old is not None or not self._reading):
                self._changed.notify()
            return self._take() if more and self.wanted_readers() else None

    # ----------------------------------------------------------- for the owner

    def old_ones(
        self,
        read: Callable[[Ages, str], object],
        call_readers: Callable[[Ages, int], None],
        run: Stoppable,
    ) -> Iterator[OldFile]:
        """Yield the old names one by one; while there is none, the owner reads ages too.

        ``read`` reads one age and puts the outcome here; ``call_readers`` wakes that many
        idle workers.
        """
        try:
            while not run.stopping:
                name = old = None
                with self._lock:
                    while not self._old and not self._names and self._reading:
                        self._wait()
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
                    self._statistics.note_deletion(time.perf_counter() - began)
        finally:
            with self._lock:
                self._names.clear()
                while self._reading:
                    self._wait()

    def _wait(self) -> None:
        self._owner_waits = True
        self._changed.wait()
        self._owner_waits = False
