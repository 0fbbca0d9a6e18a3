"""Delete the files of semaphores that nobody has used for a minute.

A few files are checked whenever a name is created, so that names that come and go leave
nothing behind, and nobody ever has to go through the whole directory at once. Whether a file
is deleted is decided under its lock, by the state in it: another process may be using it.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Generator
from os import DirEntry
from typing import TYPE_CHECKING

from slotwise._core import fork
from slotwise.errors import BackendError
from slotwise.processes._directory import age_of
from slotwise.processes._errors import Busy, Interrupted, Missing, Retired
from slotwise.processes._filenames import (
    ALL_SUFFIXES,
    PRIVATE_SUFFIXES,
    filename_of,
    name_from,
    suffix_from,
)
from slotwise.processes._operations import delete_if_idle

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess
    from slotwise.processes._semaphore_file import SemaphoreFile

IDLE_TIME = 60.0  # seconds since the last use; the other drivers keep an idle name as long
FORGET_TIME = 24 * 3600.0  # after that, even the resize of a private one is forgotten

# How many files stay open that this process doesn't use any more.
MAX_IDLE_FILES = 128

# How many files of each kind are checked for each name that is created: more than one, so that
# they become fewer. The first time it is more, as many processes create only one name.
_BATCH = 3
_FIRST_BATCH = 20
_FIRST_ENTRIES = 1000  # entries of the directory that are examined for that
_SCAN_INTERVAL = 10.0  # seconds between the starts of two scans of the directory


class Sweeper:
    """Deletes idle files of a directory: those of this process, and those of dead ones."""

    def __init__(self, process: LocalProcess) -> None:
        self._process = process
        self._lock = fork.new_lock()
        self._sweeping = False
        # Files of this process to be deleted once they are idle, with their names: those that it
        # has closed, and those of private semaphores that are garbage but still in use.
        self._pending: OrderedDict[str, str] = OrderedDict()
        # The scan of the directory, for files of other processes.
        self._scan: Generator[DirEntry[str], None, None] | None = None
        self._next_scan = 0.0
        self._next_own_sweep = time.monotonic() + IDLE_TIME / 2

    def add(self, name: str, suffix: str) -> None:
        """Check a file from now on, now and then, until it can be deleted."""
        self._pending[filename_of(name, suffix)] = name

    def sweep_some(self) -> None:
        """Check a few files: a name was created."""
        if self._begin():
            try:
                self._check_open(_BATCH)
                self._check_pending(_BATCH)
                self._check_others()
            finally:
                self._sweeping = False

    def sweep_own(self) -> None:
        """Check all files of this process, every half minute; called by the wakeups thread."""
        now = time.monotonic()
        if now >= self._next_own_sweep and self._begin():
            try:
                self._next_own_sweep = now + IDLE_TIME / 2
                self._check_open(len(self._process.files))
                self._check_pending(len(self._pending))
            finally:
                self._sweeping = False

    def _begin(self) -> bool:
        with self._lock:
            if self._sweeping:  # another thread does it, and this one doesn't have to wait
                return False
            self._sweeping = True
            return True

    def _check_open(self, count: int) -> None:
        """Delete open files that were idle for long; close others if there are too many."""
        process = self._process
        for _ in range(min(count, len(process.files))):
            file = process.next_file()
            if file is None or file.claims.by_id:
                continue
            age = file.age()
            if age > IDLE_TIME:
                self._delete(file, age)
            elif len(process.files) > MAX_IDLE_FILES and process.retire(file):
                self.add(file.name, file.suffix)

    def _check_pending(self, count: int) -> None:
        for _ in range(min(count, len(self._pending))):
            filename, name = self._pending.popitem(last=False)
            if self._process.is_garbage(name):
                stays = not self._process.delete_private(name, suffix_from(filename))
            else:  # one that is open is in use again, and will be added again
                stays = not self._process.is_open(filename) and self._check(filename)
            if stays:
                self._pending[filename] = name  # at the end, so that each has its turn

    def _check_others(self) -> None:
        """Continue the scan of the directory for files that nobody has used for long."""
        now = time.monotonic()
        entries, batch = _BATCH, _BATCH
        if self._scan is None:
            if now < self._next_scan:
                return
            if not self._next_scan:
                entries, batch = _FIRST_ENTRIES, _FIRST_BATCH
            self._next_scan = now + _SCAN_INTERVAL
            self._scan = self._process.directory.entries()
        try:
            for entry in itertools.islice(self._scan, entries):
                if entry.name.endswith(ALL_SUFFIXES) and age_of(entry) > IDLE_TIME:
                    self._check(entry.name)
                    batch -= 1
                    if not batch:
                        return
                entries -= 1
        except (BackendError, OSError):
            pass  # the directory can't be read; callers that need it are told
        if entries:  # that was the end of the directory
            self._scan = None

    def _check(self, filename: str) -> bool:
        """Delete a file that was idle for long; return whether it still exists."""
        process = self._process
        try:
            age = time.time() - process.directory.stat(filename).st_mtime
        except OSError:
            return False
        if age <= IDLE_TIME:
            return True
        name = name_from(filename) or process.name_of(filename)
        if name is None or process.is_open(filename):
            return True
        self._delete(process.file(name, suffix_from(filename)), age)
        return process.directory.has(filename)

    def _delete(self, file: SemaphoreFile, age: float) -> None:
        try:
            delete_if_idle(file, forget=file.suffix in PRIVATE_SUFFIXES and age > FORGET_TIME)
        except (BackendError, Busy, Interrupted, Missing, Retired):
            pass  # another process may delete it, or the next sweep
        self._process.retire(file)
