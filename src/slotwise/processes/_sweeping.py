"""Sweeping: which files go, and when. A name that nobody has used for a minute leaves nothing.

It is done in small pieces, a few files for each name that is made, so that names that come
and go leave no heap of files, and nobody ever walks through all of them. Whether a file may
go is decided under its lock, by the state in it: somebody may be using it in another process.
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
from slotwise.processes._folder import PRIVATE_SUFFIX, SUFFIX, file_name, name_in
from slotwise.processes._messages import Busy, Interrupted, Missing, Retired
from slotwise.processes._open_folder import age_of

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess
    from slotwise.processes._semaphore_file import SemaphoreFile

IDLE = 60.0  # seconds since the last use; as long as the other drivers keep an idle name
FORGOTTEN = 24 * 3600.0  # after which not even a private one's resize is remembered

# Open files at most of which this process uses nothing; those that it uses come on top.
MOST_IDLE = 128

# What is looked at for each name that is made, of each kind: more than one, so that it is
# less and less. And what by a process that makes its first, and may make no other.
_SHARE = 3
_FIRST_LOOK = 1000
_FIRST_SHARE = 20
_PASS = 10.0  # seconds that going through the folder takes at least


class Sweeper:
    """What this process removes from a folder: what it left there itself, and what others did."""

    def __init__(self, process: LocalProcess) -> None:
        self._process = process
        self._lock = fork.new_lock()
        self._busy = False
        # Files that this process has used and will have to remove, with their names: those
        # that it has closed, and those of private semaphores that are gone while in use.
        self._left: OrderedDict[str, str] = OrderedDict()
        # Where it is in the folder, for what others have left.
        self._cursor: Generator[DirEntry[str], None, None] | None = None
        self._next_pass = 0.0
        self._next_sweep = time.monotonic() + IDLE / 2  # of ours

    def leave(self, name: str, suffix: str) -> None:
        """Look at a file from time to time until it can be removed."""
        self._left[file_name(name, suffix)] = name

    def sweep_some(self) -> None:
        """Remove a few files: a name was made."""
        if self._begin():
            try:
                self._look_at_rooms(_SHARE)
                self._look_at_left(_SHARE)
                self._look_at_strangers()
            finally:
                self._busy = False

    def sweep_ours(self) -> None:
        """Look at all that this process has open or has left; seldom, and in a thread of ours."""
        now = time.monotonic()
        if now >= self._next_sweep and self._begin():
            try:
                self._next_sweep = now + IDLE / 2
                self._look_at_rooms(len(self._process.rooms))
                self._look_at_left(len(self._left))
            finally:
                self._busy = False

    def _begin(self) -> bool:
        with self._lock:
            if self._busy:  # another thread sweeps, and this one need not wait for it
                return False
            self._busy = True
            return True

    # ------------------------------------------------------------------- ours

    def _look_at_rooms(self, count: int) -> None:
        """Close files that are open for nobody, and remove those that were not used for long."""
        process = self._process
        for _ in range(min(count, len(process.rooms))):
            room = process.next_room()
            if room is None or room.members.all:
                continue
            age = room.age()
            if age > IDLE:
                self._sweep(room, age)
            elif len(process.rooms) > MOST_IDLE and process.retire(room):
                self.leave(room.name, room.suffix)

    def _look_at_left(self, count: int) -> None:
        for _ in range(min(count, len(self._left))):
            file, name = self._left.popitem(last=False)
            if self._process.is_gone(name):
                stays = not self._process.discard(name)
            else:  # if it is open it is used again, and will be left again
                stays = not self._process.is_open(name) and self._look_at_file(file)
            if stays:
                self._left[file] = name  # at the end: each in its turn

    # ----------------------------------------------------------------- others'

    def _look_at_strangers(self) -> None:
        """Go on through the folder a little, for what those left who have ended."""
        now = time.monotonic()
        looks, share = _SHARE, _SHARE
        if self._cursor is None:
            if now < self._next_pass:
                return
            if not self._next_pass:
                looks, share = _FIRST_LOOK, _FIRST_SHARE
            self._next_pass = now + _PASS
            self._cursor = self._process.folder.entries()
        try:
            for entry in itertools.islice(self._cursor, looks):
                if entry.name.endswith((SUFFIX, PRIVATE_SUFFIX)) and age_of(entry) > IDLE:
                    self._look_at_file(entry.name)
                    share -= 1
                    if not share:
                        return
                looks -= 1
        except (BackendError, OSError):
            pass  # the folder can't be read; those who need it are told
        if looks:  # there was no more
            self._cursor = None

    def _look_at_file(self, file: str) -> bool:
        """Remove a file that was not used for long; True if it is still there."""
        process = self._process
        try:
            age = time.time() - process.folder.stat(file).st_mtime
        except OSError:
            return False
        if age <= IDLE:
            return True
        name = name_in(file) or process.name_of(file)
        if name is None or process.is_open(name):
            return True
        self._sweep(process.room(name, file[file.rindex(".") :]), age)
        return process.folder.has(file)

    def _sweep(self, room: SemaphoreFile, age: float) -> None:
        try:
            room.sweep(forgotten=room.suffix == PRIVATE_SUFFIX and age > FORGOTTEN)
        except (BackendError, Busy, Interrupted, Missing, Retired):
            pass  # somebody else may, or the next time
        self._process.retire(room)
