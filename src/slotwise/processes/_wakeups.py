"""Wake-ups between processes: a FIFO for each, and a thread that sleeps on it.

The FIFO is in the directory. The daemon thread sleeps until something is written to it, or
until a process ends that our waiters wait for. A message names a limit and means only "read its
journal": a message too many or too few does no harm.

A pidfd reports the end of the process that had the pid when it was opened. If the pid was
reused before that, it is the wrong process: so it is checked afterwards who is alive.

The ledger decides who is granted what. FIFOs are used instead of sockets because the path of a
socket has to be short.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from slotwise._core import fork
from slotwise._wait.threads import SingleThread
from slotwise.errors import BackendError
from slotwise.processes._filenames import FIFOS
from slotwise.processes._messages import os_error

if TYPE_CHECKING:
    from slotwise.processes._limit import SharedLimit
    from slotwise.processes._process import LocalProcess

# How often the thread checks the journals by itself, in seconds.
_UNWATCHED = 0.5  # while waiting for processes whose end the kernel doesn't report
_WAITING = 1.0  # while waiting: a message may be lost, or a process with a ttl stopped
_HOLDING = 60.0  # otherwise: to touch the files of holders, and notice if they were deleted

# How long after a wait the thread continues as if somebody waited: more waits are likely.
_AFTER_WAIT = 2.0

_CHECK_ALL = "check"  # the message of a process to itself
_MESSAGE_SIZE = 17  # bytes: a key and a newline

_log = logging.getLogger("slotwise.processes")


class Wakeups:
    """The FIFO of this process, and the thread that reads it."""

    def __init__(self, process: LocalProcess) -> None:
        self._process = process
        self._fifo = f"{FIFOS}/{process.owner}"
        self._fd = -1
        self._ended = False  # set by tests
        self._starting = fork.new_lock()
        self._single = SingleThread("wakeups", self._run, self._starting)
        self._poll = select.poll()
        self._pidfds: dict[str, int] = {}  # by owner; -1 if none could be opened
        self._waited_at = -_AFTER_WAIT  # when a waiter of this process last began to wait
        self._checks_soon = False  # whether the thread will check everything within _WAITING
        self._was_busy = False  # whether a journal could not be checked: its lock was taken
        # Errors that were logged, while they last, by their place, or "" for others.
        self._reported: dict[str, str] = {}

    # ------------------------------------------------------- from any thread

    def start(self) -> str | None:
        """Create the FIFO and start the thread, if that wasn't done before.

        Returns why there is no thread, or None: the system may have none left, or the interpreter
        may be shutting down. The next call tries again.
        """
        if self._single.thread is not None:
            return None
        with self._starting:
            if self._fd < 0:
                self._fd = self._open()
            if self._single.thread is None:
                try:
                    self._single.start()
                except RuntimeError as error:
                    return str(error)
        return None

    def notify(self, key: str, owner: str) -> None:
        """Tell another process to read a semaphore's file."""
        try:
            # Opened for reading too: then there is no SIGPIPE if its reader ends just now.
            fd = self._process.directory.open(f"{FIFOS}/{owner}", os.O_RDWR)
        except OSError:
            return  # it has ended, which its waiters notice; or it will check by itself
        try:
            _send(fd, key)
        finally:
            os.close(fd)

    def other_owners(self) -> set[str]:
        """Return the other processes that have a FIFO; some of them may be dead."""
        fifos = {entry.name for entry in self._process.directory.entries(FIFOS)}
        return fifos - {self._process.owner}

    def watch(self, owners: Collection[str]) -> None:
        """Make sure that the thread watches these processes: somebody here waits for them."""
        self._waited_at = time.monotonic()
        if not self._checks_soon or {*owners} - {self._process.owner, *self._pidfds}:
            _send(self._fd, _CHECK_ALL)

    def abandon(self) -> None:
        """In a forked child: the FIFO and the thread are the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        pidfds, self._pidfds = self._pidfds, {}
        for fd in pidfds.values():
            if fd >= 0:
                os.close(fd)

    def remove(self) -> None:
        """Remove the FIFO, at the end of the process."""
        if self._fd >= 0:
            directory = self._process.directory
            directory.unlink(self._fifo)
            try:
                os.rmdir(FIFOS, dir_fd=directory.fd)
            except OSError:  # there are others in it
                pass

    # -------------------------------------------------------------- the FIFO

    def _open(self) -> int:
        """Create the FIFO, and return its descriptor."""
        directory, fd = self._process.directory, -1
        try:
            directory.reopen()
            while fd < 0:
                try:
                    if not directory.has(FIFOS):
                        os.mkdir(FIFOS, 0o700, dir_fd=directory.fd)
                except FileExistsError:
                    pass  # another process was quicker
                try:
                    if not directory.has(self._fifo):
                        os.mkfifo(self._fifo, 0o600, dir_fd=directory.fd)
                    fd = directory.open(self._fifo, os.O_RDWR)
                except FileNotFoundError:  # another process that ended has just removed one
                    if not directory.is_in_place():
                        raise
        except OSError as error:
            raise os_error(error, f"{directory.path}/{self._fifo}") from error
        try:
            self._remove_stale()
        except OSError:
            pass  # left to the next process: ours can be used
        return fd

    def _remove_stale(self) -> None:
        """Remove the FIFOs of processes that were killed: they have no reader."""
        directory = self._process.directory
        for owner in self.other_owners():
            try:
                os.close(directory.open(f"{FIFOS}/{owner}", os.O_WRONLY))
            except OSError as error:
                if error.errno == errno.ENXIO:
                    directory.unlink(f"{FIFOS}/{owner}")

    # ---------------------------------------------------- the ends of processes

    @property
    def _misses_exits(self) -> bool:
        """Whether the end of one of the processes will not be reported."""
        return -1 in self._pidfds.values()

    def _watch(self, owners: dict[str, int]) -> bool:
        """Watch these processes, given with their pids, and no others; return if some are new."""
        self._unwatch(self._pidfds.keys() - owners.keys())
        new = owners.keys() - self._pidfds.keys()
        for owner in new:
            try:
                fd = os.pidfd_open(owners[owner])
                self._poll.register(fd, select.POLLIN)
            except (AttributeError, OSError):  # not on this system, not in our namespace, gone
                fd = -1
            self._pidfds[owner] = fd
        return bool(new)

    def _unwatch(self, owners: Collection[str]) -> None:
        for owner in owners:
            # Removed from the dict before it is closed: a child that another thread forks in
            # between closes what is in the dict, and by then the number could be another file's.
            fd = self._pidfds.pop(owner)
            if fd >= 0:
                self._poll.unregister(fd)
                os.close(fd)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._poll.register(self._fd, select.POLLIN)
        checked_at = time.monotonic()
        while not self._ended:
            # Cleared before the interval is decided: whoever begins to wait after that sees it,
            # and sends a message.
            self._checks_soon = False
            interval = self._interval()
            self._checks_soon = interval <= _WAITING
            due = checked_at + interval
            try:
                ready = {fd for fd, _ in self._poll.poll(max(due - time.monotonic(), 0.0) * 1000)}
                ended = [owner for owner, fd in self._pidfds.items() if fd in ready]
                self._unwatch(ended)
                messages = set[str]()
                if self._fd in ready:
                    messages.update(os.read(self._fd, 4096 * _MESSAGE_SIZE).decode().split())
                limits = self._process.limits
                for limit in [limits[each] for each in messages if each in limits]:
                    self._was_busy |= not self._check(limit, thorough=False)
                now = time.monotonic()
                if ended or _CHECK_ALL in messages or now >= due:
                    checked_at = now
                    self._check_all(bool(ended))
                self._reported.pop("", None)
            except Exception as error:
                self._report("", error)
                time.sleep(_UNWATCHED)  # it may fail again and again

    def _interval(self) -> float:
        if time.monotonic() - self._waited_at < _AFTER_WAIT or any(
            limit.claims.sleeping for limit in list(self._process.limits.values())
        ):
            return _UNWATCHED if self._was_busy or self._misses_exits else _WAITING
        return _HOLDING

    def _check_all(self, ended: bool) -> None:
        """Check all journals; ``ended`` means that a process has ended."""
        limits = list(self._process.limits.values())
        waited_for = [limit for limit in limits if limit.claims.sleeping]
        owners: dict[str, int] = {}
        for limit in waited_for:
            owners |= limit.other_owners()
        new = self._watch(owners)  # one of these may have ended before that
        thorough = ended or new or self._was_busy or self._misses_exits
        checked = [self._check(limit, thorough=thorough) for limit in waited_for]
        self._was_busy = not all(checked)
        for limit in limits:
            if limit.claims.by_id and limit not in waited_for:
                self._check(limit, thorough=False)
            if limit.claims.by_id:
                limit.with_journal(limit.journal.touch)
        self._process.sweep(own=True)
        directory = self._process.directory
        if directory.is_in_place() and not directory.has(self._fifo):  # somebody removed it
            removed, self._fd = self._fd, self._open()
            self._poll.register(self._fd, select.POLLIN)
            self._poll.unregister(removed)
            os.close(removed)

    def _check(self, limit: SharedLimit, *, thorough: bool) -> bool:
        """Check one; its errors don't affect others. Return False if it was locked."""
        place = limit.journal.place
        try:
            is_checked = limit.check(thorough=thorough)
        except BackendError as error:
            self._report(place, error)
            return True
        self._reported.pop(place, None)
        return is_checked

    def _report(self, path: str, error: Exception) -> None:
        """Log an error once while it lasts."""
        if self._reported.get(path) != str(error):
            self._reported[path] = str(error)
            expected = isinstance(error, BackendError)
            _log.warning("waiting for other processes: %s", error, exc_info=not expected)


def _send(fd: int, message: str) -> None:
    try:
        os.write(fd, message.encode() + b"\n")
    except OSError:
        pass  # it is full of messages, so the reader will check everything soon
