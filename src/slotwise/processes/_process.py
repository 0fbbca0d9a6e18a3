"""LocalProcess: this process in a directory: its identity, and the files that it has open.

Its identity is drawn at random for each process and after each fork, so that a reused pid is
never mistaken for the process that had it before.

It also deletes the files of limits that nobody has used for a minute. A few are checked whenever
a name is created, so that names that come and go leave nothing behind, and nobody ever has to go
through the whole directory at once. Whether a file is deleted is decided under its lock, by the
state in it: another process may be using it.
"""

from __future__ import annotations

import atexit
import itertools
import os
import time
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from slotwise._core import fork
from slotwise._core.closing import Generations
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes._directory import OpenDirectory, age_of
from slotwise.processes._file_journal import FileJournal, read_name
from slotwise.processes._filenames import (
    ALL_SUFFIXES,
    PRIVATE_SUFFIXES,
    SUFFIX,
    filename_of,
    key_from,
    key_of,
    name_from,
    suffix_from,
    true_path,
)
from slotwise.processes._journal import Busy
from slotwise.processes._limit import Interrupted, SharedLimit
from slotwise.processes._locked_file import LockedFile
from slotwise.processes._operations import delete
from slotwise.processes._state import State
from slotwise.processes._wakeups import Wakeups

IDLE_TIME = 60.0  # seconds since the last use; the other drivers keep an idle name as long
FORGET_TIME = 24 * 3600.0  # after that, even the resize of a private one is forgotten

# How many files stay open that this process doesn't use any more.
MAX_IDLE_FILES = 128

# How many files are deleted for each name that is created, and how many entries of the directory
# are examined for that: more than one, so that they become fewer.
_BATCH, _ENTRIES = 3, 50


class LocalProcess:
    """This process, in one directory."""

    # limits    those that are or were open, by key: each has a descriptor
    # _known    all that somebody refers to. There are never two for a file: if one of them closed
    #           it, the other one would lose its locks

    def __init__(self, directory: OpenDirectory) -> None:
        self.directory = directory
        self.liveness_byte = int.from_bytes(os.urandom(8), "big") >> 4
        self.owner = f"p{self.liveness_byte:015x}"
        self.pid = os.getpid()
        self.boot = _boot_id()
        self.limits: dict[str, SharedLimit] = {}
        self._known: WeakValueDictionary[str, SharedLimit] = WeakValueDictionary()
        # The suffixes of the private limits that were made here, by name.
        self.private: dict[str, str] = {}
        self.wakeups = Wakeups(self)
        self.next_number = itertools.count(1).__next__
        # Re-entrant: a garbage collection may release something.
        self._lock = fork.new_lock()
        self._sweeping = False
        # The scan of the directory, for files of other processes.
        self._scan: Iterator[os.DirEntry[str]] | None = None
        self._next_own_sweep = time.monotonic() + IDLE_TIME / 2

    def abandon(self) -> None:
        """In a forked child: everything here belongs to the parent."""
        self.wakeups.abandon()
        for limit in [*self._known.values()]:
            limit.abandon()
        self.directory.close()

    def limit(self, name: str, suffix: str = SUFFIX) -> SharedLimit:
        """Return the limit of a name; its file is opened by the first change."""
        key = key_of(name, suffix)
        with self._lock:
            limit = self._known.get(key)
            if limit is None:
                file = LockedFile(self.directory, filename_of(name, suffix), self.liveness_byte)
                public_name = None if suffix in PRIVATE_SUFFIXES else name
                limit = SharedLimit(FileJournal(self, file, name, key), name, public_name)
                self._known[key] = limit
            return limit

    def opened(self, key: str) -> None:
        """Keep a limit whose file is being opened; *under its mutex*, as when it is closed."""
        self.limits[key] = self._known[key]

    def name_of(self, filename: str) -> str | None:
        """Return the name that is stored in a file; None if it can't be read."""
        with self._lock:
            limit = self._known.get(key_from(filename))
            # Only if it can't be open here: closing it drops this process's locks on it.
            return read_name(self, filename) if limit is None else limit.name

    # ------------------------------------------------------------- deleting files

    def _delete(self, limit: SharedLimit, is_unused: Callable[[State, float], bool]) -> None:
        """Delete the file of a limit, if nobody uses it and nobody has its lock; close it."""
        try:
            limit.change(delete, limit, is_unused, lock_timeout=0.0)
        except (BackendError, Busy, Interrupted, UnknownSemaphore):
            pass  # another process may delete it, or the next sweep
        limit.close_if_unused()

    def delete_private(self, name: str, suffix: str, *, at_exit: bool = False) -> None:
        """Delete the file of a private limit, if nobody else uses it."""
        ignored = {self.owner} if at_exit else set()
        self.private.pop(name, None)
        if self.directory.has(filename_of(name, suffix)):
            self._delete(self.limit(name, suffix), lambda state, _: state.owners.keys() <= ignored)

    def on_exit(self) -> None:
        """Delete what nobody needs after this process has ended."""
        for name, suffix in [*self.private.items()]:
            self.delete_private(name, suffix, at_exit=True)
        self.wakeups.remove()

    def sweep(self, *, own: bool) -> None:
        """Delete files that were idle for long: a few, or all that are open here (``own``)."""
        count, scan = _BATCH, True
        if own:
            if time.monotonic() < self._next_own_sweep:
                return
            self._next_own_sweep = time.monotonic() + IDLE_TIME / 2
            # Those that were closed because they were too many are found by a scan.
            count, scan = len(self.limits), len(self.limits) >= MAX_IDLE_FILES
        with self._lock:
            if self._sweeping:  # another thread does it, and this one doesn't have to wait
                return
            self._sweeping = True
        try:
            unused = [limit for limit in [*self.limits.values()] if not limit.claims.by_id]
            for limit in unused[:count]:  # those that were opened first
                assert isinstance(limit.journal, FileJournal)
                age = limit.with_journal(limit.journal.age)
                if age > IDLE_TIME:
                    self._delete_idle(limit, age)
                elif len(self.limits) > MAX_IDLE_FILES:
                    limit.close_if_unused()
            if scan:
                self._check_others()
        except (BackendError, OSError):
            pass  # the directory can't be read; callers that need it are told
        finally:
            self._sweeping = False

    def _check_others(self) -> None:
        """Continue the scan of the directory for files that nobody has used for long."""
        batch = _BATCH
        # Their ages now: at the end of a scan its descriptor is closed, which they use.
        found = [(each.name, age_of(each)) for each in itertools.islice(self._scan or (), _ENTRIES)]
        if len(found) < _ENTRIES:
            self._scan = self.directory.entries()
            more = itertools.islice(self._scan, _ENTRIES - len(found))
            found += [(each.name, age_of(each)) for each in more]
        for name, age in found:
            if age <= IDLE_TIME or not name.endswith(ALL_SUFFIXES) or batch == 0:
                continue
            stored = name_from(name) or self.name_of(name)
            if stored is not None and key_from(name) not in self.limits:
                self._delete_idle(self.limit(stored, suffix_from(name)), age)
                batch -= 1

    def _delete_idle(self, limit: SharedLimit, age: float) -> None:
        forget = limit.public_name is None and age > FORGET_TIME
        self._delete(
            limit, lambda state, now: state.is_idle(now) and (forget or not state.remembers(now))
        )


_lock = fork.new_lock()
_processes: dict[str, LocalProcess] = {}

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


def known_limit(directory: str, name: str, suffix: str) -> SharedLimit | None:
    """Return the limit of a name, if this process has used it."""
    process = _processes.get(directory)
    return None if process is None else process.limits.get(key_of(name, suffix))


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
        process.delete_private(name, suffix)


def _boot_id() -> str:
    """Return what tells this boot of the machine from others; "" if the system doesn't say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123
            return file.read().decode().strip()
    except OSError:
        return ""


def _forget_parent() -> None:
    global _processes, fork_epoch
    for process in {*_processes.values()}:
        _inherited.setdefault(process.owner, process.next_number())
        process.abandon()
    _processes = {}
    fork_epoch = object()


fork.in_child(fork.Step.FORGET, _forget_parent)


@atexit.register
def _on_exit() -> None:
    for process in {*_processes.values()}:
        process.on_exit()
