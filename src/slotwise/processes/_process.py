"""LocalProcess: this process in a directory: its identity, and the files that it has open.

Its identity is drawn at random for each process and after each fork, so that a reused pid is
never mistaken for the process that had it before.
"""

from __future__ import annotations

import atexit
import itertools
import os
from collections import OrderedDict
from weakref import WeakSet

from slotwise._core import fork
from slotwise._core.closing import Generations
from slotwise._wait.ttl_cancel import TtlCancels
from slotwise.errors import BackendError
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._errors import Busy, Interrupted, Missing, Retired
from slotwise.processes._filenames import (
    SUFFIX,
    filename_of,
    key_from,
    key_of,
    true_path,
)
from slotwise.processes._journal import read_name
from slotwise.processes._operations import delete_private
from slotwise.processes._semaphore_file import SemaphoreFile
from slotwise.processes._sweeping import Sweeper
from slotwise.processes._wakeups import Wakeups


class LocalProcess:
    """This process, in one directory."""

    def __init__(self, directory: OpenDirectory) -> None:
        self.directory = directory
        self.liveness_byte = int.from_bytes(os.urandom(8), "big") >> 4
        self.owner = f"p{self.liveness_byte:015x}"
        self.pid = os.getpid()
        self.boot = _boot_id()
        self.files: OrderedDict[str, SemaphoreFile] = OrderedDict()  # by key
        self._all_files: WeakSet[SemaphoreFile] = WeakSet()  # retired ones too
        # The suffixes of the private limits that were made here, by name.
        self.private: dict[str, str] = {}
        self._garbage: dict[str, str] = {}  # of these, the ones that were garbage-collected
        self.ttl_cancels = TtlCancels()  # by acquisition id
        self.wakeups = Wakeups(self)
        self.sweeper = Sweeper(self)
        self.next_number = itertools.count(1).__next__
        # Re-entrant: a garbage collection may release something.
        self._lock = fork.new_lock()
        _all_processes.add(self)

    def abandon(self) -> None:
        """In a forked child: everything here belongs to the parent."""
        self.wakeups.abandon()
        self.ttl_cancels.clear()
        for file in self._all_files:
            file.abandon()
        self.directory.close()

    def file(self, name: str, suffix: str = SUFFIX) -> SemaphoreFile:
        """Return the SemaphoreFile of a name; its file is opened by the first change."""
        key = key_of(name, suffix)
        with self._lock:
            file = self.files.get(key)
            if file is None or file.retired:
                file = SemaphoreFile(self, name, suffix)
                self._all_files.add(file)
                self.files[key] = file
            return file

    def name_of(self, filename: str) -> str | None:
        """Return the name that is stored in a file; None if it can't be read."""
        with self._lock:
            file = self.files.get(key_from(filename))
            if file is not None:
                return file.name
            # Only because it isn't open here: closing it drops this process's locks on it.
            return read_name(self.directory, filename)

    def is_open(self, filename: str) -> bool:
        """Return whether this process has a file open, or is about to open it."""
        return key_from(filename) in self.files

    def next_file(self) -> SemaphoreFile | None:
        """Return one of the open files, each in its turn."""
        with self._lock:
            for key, file in self.files.items():
                self.files.move_to_end(key)  # never removed: others look it up without the lock
                return file
            return None

    def retire(self, file: SemaphoreFile) -> bool:
        """Close a file that this process doesn't use; return whether it did."""
        with self._lock:
            if not file.retire():
                return False
            key = file.claims.key
            if self.files.get(key) is file:
                del self.files[key]
            return True

    # --------------------------------------------------- private semaphores

    def on_collected(self, name: str, suffix: str) -> None:
        """Delete the file of a private semaphore that was garbage-collected, when it is idle."""
        self._garbage[name] = suffix
        if not self.delete_private(name, suffix):
            self.sweeper.add(name, suffix)

    def is_garbage(self, name: str) -> bool:
        """Return whether this was a private semaphore that has been garbage-collected."""
        return name in self._garbage

    def delete_private(self, name: str, suffix: str, *, at_exit: bool = False) -> bool:
        """Delete the file of a private semaphore; return False if it is still in use."""
        filename = filename_of(name, suffix)
        try:
            if self.directory.has(filename):
                file = self.file(name, suffix)
                delete_private(file, at_exit=at_exit)
                self.retire(file)
        except (BackendError, Busy, Interrupted, Missing, Retired):
            pass
        if self.directory.has(filename):
            return False
        self.private.pop(name, None)
        self._garbage.pop(name, None)
        return True

    def on_exit(self) -> None:
        """Delete what nobody needs after this process has ended."""
        for name, suffix in [*self.private.items()]:
            self.delete_private(name, suffix, at_exit=True)
        self.wakeups.remove()


_lock = fork.new_lock()
_processes: dict[str, LocalProcess] = {}

# Every one that was made, for a forked child: another thread may just be adding one above.
_all_processes: WeakSet[LocalProcess] = WeakSet()

# The owners that this process had before it was forked, and the first number that each had not
# used: a child has the ids below that in its memory, and holds none of them.
_inherited: dict[str, int] = {}

# The instances that this process made, by the path of the directory and the name.
generations = Generations()

# Another object after each fork.
fork_epoch = object()


def process_for(directory: str) -> LocalProcess:
    """Return this process in a directory, which is created if it doesn't exist.

    Raises:
        BackendError: the directory can't be used, or others could tamper with it.
    """
    with _lock:
        process = _processes.get(directory)
        if process is None:
            opened = OpenDirectory(true_path(directory))
            # One LocalProcess per directory, even if it is mounted at two paths.
            others = _processes.values()
            process = next((each for each in others if each.directory.is_same_as(opened)), None)
            if process is None:
                process = LocalProcess(opened)
            else:
                opened.close()
            _processes[directory] = process
        return process


def open_file(directory: str, name: str, suffix: str = SUFFIX) -> SemaphoreFile | None:
    """Return the SemaphoreFile of a name, if this process has one."""
    process = _processes.get(directory)
    return None if process is None else process.files.get(key_of(name, suffix))


def is_inherited(acquisition_id: str) -> bool:
    """Return whether the id is one of the parent process, from before the fork."""
    if not _inherited:
        return False
    owner, _, number = acquisition_id.partition("-")
    return owner in _inherited and number.isdecimal() and int(number) < _inherited[owner]


def on_collected(directory: str, name: str, suffix: str, made_in: object) -> None:
    """Delete the file of a private semaphore that was garbage-collected where it was made."""
    process = _processes.get(directory)
    if made_in is fork_epoch and process is not None:
        process.on_collected(name, suffix)


def _boot_id() -> str:
    """Return what tells this boot of the machine from others; "" if the system doesn't say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123
            return file.read().decode().strip()
    except OSError:
        return ""


def _forget_parent() -> None:
    global _processes, fork_epoch
    for process in _all_processes:
        _inherited.setdefault(process.owner, process.next_number())
        process.abandon()
    _processes = {}
    fork_epoch = object()


fork.in_child(fork.Step.FORGET, _forget_parent)


@atexit.register
def _on_exit() -> None:
    for process in {*_processes.values()}:
        process.on_exit()
