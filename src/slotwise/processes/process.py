"""Process: who this process is to the others of a folder, and which semaphores it has open.

Its number is drawn at random for each process and after each fork, so that a
reused pid is never taken for the one that had it before.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import secrets
from pathlib import Path
from weakref import WeakSet

from slotwise import _fork
from slotwise._closing import Generations
from slotwise.errors import BackendError
from slotwise.processes._open_folder import OpenFolder, age_of
from slotwise.processes.acquisition import Acquisition
from slotwise.processes.folder import PRIVATE_SUFFIX, SUFFIX, file_name, key_of, name_in
from slotwise.processes.journal import read_name
from slotwise.processes.post import Post
from slotwise.processes.room import Room
from slotwise.processes.words import Busy, Interrupted, Missing, Retired

# Files that are open at most without anybody of this process being in them.
_MOST_IDLE = 128

_OLD = 24 * 3600.0
_LOOKED_AT = 1000  # files of a folder, by one who begins to use it
_SWEPT = 20  # of these


class Process:
    """This process, in one folder."""

    def __init__(self, folder: OpenFolder) -> None:
        self.folder = folder
        self.life = secrets.randbits(60)
        self.owner = f"p{self.life:015x}"
        self.pid = os.getpid()
        self.boot = _boot()
        self.rooms: dict[str, Room] = {}  # by key, the longest unused first
        self._every_room: WeakSet[Room] = WeakSet()  # also those that are given up
        self.private: set[str] = set()  # names of private semaphores that were made here
        self.condemned: dict[str, Acquisition] = {}  # expired, and about to be cancelled for it
        self.post = Post(self)
        self.next_number = itertools.count(1).__next__
        # Re-entrant: a garbage collection may release something.
        self._lock = _fork.new_lock()
        _everywhere.add(self)

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's."""
        self.post.abandon()
        for room in self._every_room:
            room.abandon()
        self.folder.close()

    def room(self, name: str, suffix: str = SUFFIX) -> Room:
        """The room of a name, with its file open.

        Raises:
            BackendError: the file can't be used.
        """
        key = key_of(name)
        with self._lock:
            room = self.rooms.pop(key, None)
            if room is None or room.retired:
                if len(self.rooms) >= _MOST_IDLE:
                    self._retire_idle()
                self.folder.follow()
                room = Room(self, name, suffix)
                self._every_room.add(room)
            self.rooms[key] = room
            return room

    def name_of(self, file: str) -> str | None:
        """The name that stands in a file; None if it can't be told, or the file is gone."""
        with self._lock:
            for room in self.rooms.values():
                if room.path.name == file:
                    return room.name
            # Opened only where no room has it open: closing it would drop that one's locks.
            return read_name(self.folder, file)

    def sweep(self) -> None:
        """Remove some files that nobody has used for a day, and that remember no resize.

        A few for each process that begins to use the folder, so that names that
        come and go leave no heap of files, and nobody has to walk through one.
        """
        with contextlib.closing(self.folder.entries()) as entries:
            old = [
                entry.name
                for entry in itertools.islice(entries, _LOOKED_AT)
                if entry.name.endswith((SUFFIX, PRIVATE_SUFFIX)) and age_of(entry) > _OLD
            ]
        for file in old[:_SWEPT]:
            name = name_in(file) or self.name_of(file)
            if name is not None:
                try:
                    self.room(name, Path(file).suffix).sweep()
                except (BackendError, Busy, Missing, Retired):
                    pass  # the next one may

    def discard(self, name: str, *, at_exit: bool = False) -> None:
        """Remove the file of a private semaphore that is gone, unless somebody still uses it."""
        file = file_name(name, PRIVATE_SUFFIX)
        try:
            if self.folder.has(file):
                self.room(name, PRIVATE_SUFFIX).discard(at_exit=at_exit)
        except (BackendError, Busy, Interrupted, Missing, Retired):
            pass
        if not self.folder.has(file):
            self.private.discard(name)

    def _retire_idle(self) -> None:
        """Close the files of half of the rooms that nobody of us is in."""
        idle = [room for room in self.rooms.values() if not room.members.all]
        for room in idle[: _MOST_IDLE // 2]:
            if room.retire():
                del self.rooms[room.members.key]


_lock = _fork.new_lock()
_processes: dict[Path, Process] = {}

# All that were made, for a forked child: another thread may be about to enter one above.
_everywhere: WeakSet[Process] = WeakSet()

# Who this process was before it was forked, and the first number that it had not used by then:
# a child has the ids below that in its memory, and holds none of them.
_inherited: dict[str, int] = {}

# The instances that this process made, by the true path of the folder and the name.
generations = Generations()

# Another object after each fork.
era = object()


def process_for(folder: Path) -> Process:
    """This process in ``folder``, which is made if it is missing.

    Raises:
        BackendError: the folder can't be used, or is not safe.
    """
    with _lock:
        process = _processes.get(folder)
        if process is None:
            # Not resolved to its end: a symbolic link in its place is refused.
            opened = OpenFolder(folder.parent.resolve() / folder.name)
            # One process for one folder, by whatever path.
            others = _processes.values()
            process = next((each for each in others if each.folder.is_same_as(opened)), None)
            if process is None:
                process = Process(opened)
                process.sweep()
            else:
                opened.close()
            _processes[folder] = process
        return process


def open_room(folder: Path, name: str) -> Room | None:
    """The room of a name, if this process has it open."""
    process = _processes.get(folder)
    return None if process is None else process.rooms.get(key_of(name))


def is_inherited(acquisition_id: str) -> bool:
    """Whether this is an id of the process that forked this one, from before that."""
    owner, _, number = acquisition_id.partition("-")
    return owner in _inherited and number.isdecimal() and int(number) < _inherited[owner]


def discard(folder: Path, name: str, of_era: object) -> None:
    """Leave nothing of a private semaphore that is gone, if it was made here and not copied."""
    process = _processes.get(folder)
    if of_era is era and process is not None:
        process.discard(name)


def _boot() -> str:
    """What tells this run of the machine from earlier ones; nothing where that is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _forget_parent() -> None:
    global _processes, era
    for process in _everywhere:
        _inherited.setdefault(process.owner, process.next_number())
        process.abandon()
    _processes = {}
    era = object()


_fork.in_child(_fork.Step.FORGET, _forget_parent)


@atexit.register
def _leave() -> None:
    for process in {*_processes.values()}:
        for name in [*process.private]:
            process.discard(name, at_exit=True)
        process.post.end()
