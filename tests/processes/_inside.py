"""What tests look at inside a limit of processes; everything else goes through its public face."""

from __future__ import annotations

import os
from typing import Any

from tests._inside import backend_of

from slotwise._wait.threads import SingleThread
from slotwise.processes._file_journal import FileJournal
from slotwise.processes._limit import SharedLimit
from slotwise.processes._wakeups import Wakeups


def limit_of(limit: Any) -> SharedLimit:
    """What this process has of the file of a semaphore, of tiers or of a rate."""
    shared: SharedLimit = backend_of(limit).limit()
    return shared


def single_of(wakeups: Wakeups) -> SingleThread:
    """The thread that sleeps on the FIFO."""
    return wakeups._single


def tell(wakeups: Wakeups, message: str) -> None:
    """Write to the FIFO of this process."""
    os.write(wakeups._fd, message.encode() + b"\n")


def sweep_soon(limit: Any) -> None:
    """Let the thread delete this process's idle files now, and not in half a minute."""
    process = limit_of(limit).journal.process
    process._next_own_sweep = 0.0
    tell(process.wakeups, "check")


def extent(journal: FileJournal) -> tuple[int, int]:
    """Where the snapshot starts, and where the records end."""
    return journal._start, journal._end
