"""Journal: the verbs that have changed one limit, in order, wherever they are written down.

Every process that uses a limit applies the same records to a `State` of its own, so all of them
reach the same state. `SharedLimit` makes the changes, one at a time:

    begin      take the lock that one process has at a time; say whether it has it
    read       what others have written since this process last read
    append     a record for each verb of the change: committed when this returns
    end        give the lock back
    notify     tell the processes concerned to read, since one of their claims has changed

A record is a list of plain values (JSON): a verb, the time by the journal's clock and by the wall
clock in microseconds, and the verb's arguments. Sometimes a snapshot of the state replaces all
records so far; whoever has not read those gets the snapshot instead. `FileJournal` keeps them in a
file. Nothing here knows what a verb means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from slotwise.errors import BackendError, UnknownSemaphore

Record: TypeAlias = "list[Any]"


class Busy(Exception):
    """Internal: another process had the lock the whole time. Nothing was changed."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid  # of the process that has the lock; None if unknown


class Damaged(BackendError):
    """What is written can't be read or applied."""


class Journal(ABC):
    """The records of one limit, as far as this process has read them."""

    place: str  # where it is, for messages
    owner: str  # this process: the prefix of its acquisition ids
    pid: int
    boot: str  # what tells the clock of these times from one that has started anew
    # Whether it was opened since this was last cleared: nobody here has anything in it yet.
    is_new: bool
    is_behind: bool  # whether there may be something to read, as far as `begin` has seen
    next_number: Callable[[], int]  # for acquisition ids; each is given once
    # Gives the lock back, if this process has it.
    end: Callable[[], object]
    # Makes sure that this process can be notified; returns why that is impossible, or None.
    listen: Callable[[], str | None]
    # Has the ends of processes noticed from now on: somebody here waits for them.
    watch: Callable[[Collection[str]], None]
    # Has another process read; not under the lock. It is a hint, and may be lost.
    notify: Callable[[str], None]

    @abstractmethod
    def times(self) -> tuple[float, int]:
        """Return the time in seconds by the clock that all its processes share.

        And the wall clock time in microseconds.
        """

    @abstractmethod
    def begin(self, since: float, retries: bool, *, create: bool) -> bool:
        """Take the lock, to be given back by `end`; return False if the caller has to try again.

        Args:
            since: when the caller first tried, by `time.monotonic`.
            retries: whether that was earlier than now.
            create: make a journal without records if there is none.

        Raises:
            UnknownSemaphore: there is none.
        """

    @abstractmethod
    def give_up(self, since: float) -> int | None:
        """Try no longer; return the pid of the process that has the lock, if that is known."""

    @abstractmethod
    def read(self) -> tuple[Any, list[Record]] | None:
        """Return a snapshot, or None if this process needs none, and the records after that.

        Return None if nothing was ever written.

        Raises:
            Damaged: what is written makes no sense.
        """

    @abstractmethod
    def forget(self) -> None:
        """Have all of it read again: what was read or written could not be applied."""

    @abstractmethod
    def damaged(self, error: Exception) -> BackendError:
        """Return the error of what was read and can't be applied."""

    @abstractmethod
    def unknown(self) -> UnknownSemaphore:
        """Return the error of a limit that there is not."""

    @abstractmethod
    def create(self, snapshot: Any) -> None:
        """Write what a journal starts with; under the lock, after `read` has returned None."""

    @abstractmethod
    def append(self, record: Record, snapshot: Callable[[], Any]) -> None:
        """Commit a record, under the lock; ``snapshot`` returns one that contains it.

        If it raises, nothing was committed.
        """

    @abstractmethod
    def is_alive(self, owner: str) -> bool:
        """Return whether a process is alive; under the lock."""

    @abstractmethod
    def announce(self) -> None:
        """Have everybody look, since this process has created it; not under the lock."""

    @abstractmethod
    def touch(self) -> None:
        """Show that it is in use, to whatever deletes what is old."""

    @abstractmethod
    def remove(self) -> None:
        """Delete it, under the lock."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it: no claim of this process is in it. `begin` opens it again."""
