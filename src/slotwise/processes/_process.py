"""Process: who this process is to the others of a folder, and which semaphores it has open.

Its number is drawn at random for each process and after each fork, so that a
reused pid is never taken for the one that had it before.
"""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
from collections import OrderedDict
from pathlib import Path
from weakref import WeakSet

from slotwise._core import fork
from slotwise._core.closing import Generations
from slotwise.errors import BackendError
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._folder import PRIVATE_SUFFIX, SUFFIX, file_name, key_in, key_of, true_path
from slotwise.processes._journal import read_name
from slotwise.processes._messages import Busy, Interrupted, Missing, Retired
from slotwise.processes._open_folder import OpenFolder
from slotwise.processes._semaphore_file import SemaphoreFile
from slotwise.processes._sweeping import Sweeper
from slotwise.processes._wakeups import Wakeups


class LocalProcess:
    """This process, in one folder."""

    def __init__(self, folder: OpenFolder) -> None:
        self.folder = folder
        self.life = secrets.randbits(60)
        self.owner = f"p{self.life:015x}"
        self.pid = os.getpid()
        self.boot = _boot()
        self.rooms: OrderedDict[str, SemaphoreFile] = OrderedDict()  # by key
        self._every_room: WeakSet[SemaphoreFile] = WeakSet()  # also those that are given up
        self.private: set[str] = set()  # names of private semaphores that were made here
        self._gone: set[str] = set()  # of these, the semaphores that nobody has any more
        self.condemned: dict[
            str, ProcessAcquisition
        ] = {}  # expired, and about to be cancelled for it
        self.post = Wakeups(self)
        self.sweeper = Sweeper(self)
        self.next_number = itertools.count(1).__next__
        # Re-entrant: a garbage collection may release something.
        self._lock = fork.new_lock()
        _everywhere.add(self)

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's."""
        self.post.abandon()
        for room in self._every_room:
            room.abandon()
        self.folder.close()

    def room(self, name: str, suffix: str = SUFFIX) -> SemaphoreFile:
        """The room of a name; its file is opened with the first change."""
        key = key_of(name)
        with self._lock:
            room = self.rooms.get(key)
            if room is None or room.retired:
                room = SemaphoreFile(self, name, suffix)
                self._every_room.add(room)
                self.rooms[key] = room
            return room

    def name_of(self, file: str) -> str | None:
        """The name that stands in a file; None if it can't be told, or the file is gone."""
        with self._lock:
            room = self.rooms.get(key_in(file))
            if room is not None:
                return room.name
            # Opened only where no room has it open: closing it would drop that one's locks.
            return read_name(self.folder, file)

    def is_open(self, name: str) -> bool:
        """Whether this process has the file of a name open, or is about to."""
        return key_of(name) in self.rooms

    def next_room(self) -> SemaphoreFile | None:
        """One of those that are open; each in its turn."""
        with self._lock:
            for key, room in self.rooms.items():
                self.rooms.move_to_end(key)  # and never out of it: others look without the lock
                return room
            return None

    def retire(self, room: SemaphoreFile) -> bool:
        """Close the file of a room if nobody of this process is in it."""
        with self._lock:
            if not room.retire():
                return False
            key = room.members.key
            if self.rooms.get(key) is room:
                del self.rooms[key]
            return True

    # --------------------------------------------------- private semaphores

    def forget(self, name: str) -> None:
        """A private semaphore is gone: its file goes as soon as nobody uses it."""
        self._gone.add(name)
        if not self.discard(name):
            self.sweeper.leave(name, PRIVATE_SUFFIX)

    def is_gone(self, name: str) -> bool:
        """Whether this was a private semaphore of this process."""
        return name in self._gone

    def discard(self, name: str, *, at_exit: bool = False) -> bool:
        """Remove the file of a private semaphore that is gone; False if somebody still uses it."""
        file = file_name(name, PRIVATE_SUFFIX)
        try:
            if self.folder.has(file):
                room = self.room(name, PRIVATE_SUFFIX)
                room.discard(at_exit=at_exit)
                self.retire(room)
        except (BackendError, Busy, Interrupted, Missing, Retired):
            pass
        if self.folder.has(file):
            return False
        self.private.discard(name)
        self._gone.discard(name)
        return True

    def leave(self) -> None:
        """At the end of the process."""
        for name in [*self.private]:
            self.discard(name, at_exit=True)
        self.post.end()


_lock = fork.new_lock()
_processes: dict[Path, LocalProcess] = {}

# All that were made, for a forked child: another thread may be about to enter one above.
_everywhere: WeakSet[LocalProcess] = WeakSet()

# Who this process was before it was forked, and the first number that it had not used by then:
# a child has the ids below that in its memory, and holds none of them.
_inherited: dict[str, int] = {}

# The instances that this process made, by the true path of the folder and the name.
generations = Generations()

# Another object after each fork.
era = object()


def process_for(folder: Path) -> LocalProcess:
    """This process in ``folder``, which is made if it is missing.

    Raises:
        BackendError: the folder can't be used, or is not safe.
    """
    with _lock:
        process = _processes.get(folder)
        if process is None:
            opened = OpenFolder(true_path(folder))
            # One process for one folder, by whatever path.
            others = _processes.values()
            process = next((each for each in others if each.folder.is_same_as(opened)), None)
            if process is None:
                process = LocalProcess(opened)
            else:
                opened.close()
            _processes[folder] = process
        return process


def open_room(folder: Path, name: str) -> SemaphoreFile | None:
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
        process.forget(name)


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


fork.in_child(fork.Step.FORGET, _forget_parent)


@atexit.register
def _leave() -> None:
    for process in {*_processes.values()}:
        process.leave()
