"""Wake-ups between processes: a FIFO for each, and a thread that sleeps on it.

The FIFO is in the directory. The daemon thread sleeps until something is written to it, or
until a process ends that our waiters wait for. A message names a
semaphore and means only "read its file": a message too many or too few does no harm.

The ledger in the semaphore's file decides who is granted what. FIFOs are used instead
of sockets because the path of a socket has to be short.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from slotwise._core import fork
from slotwise._wait.threads import SingleThread
from slotwise.errors import BackendError
from slotwise.processes._directory import OpenDirectory, age_of
from slotwise.processes._filenames import FIFOS
from slotwise.processes._messages import os_error
from slotwise.processes._poller import Poller

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess
    from slotwise.processes._semaphore_file import SemaphoreFile

# How often the thread checks the files by itself, in seconds.
_UNWATCHED = 0.5  # while waiting for processes whose end the kernel doesn't report
_WAITING = 1.0  # while waiting: a message may be lost, or a process with a ttl stopped
_HOLDING = 60.0  # otherwise: to touch the files of holders, and notice if they were deleted

# How long after a wait the thread continues as if somebody waited: more waits are likely.
_AFTER_WAIT = 2.0

_NEW = ".new"  # the suffix of a FIFO that has no reader yet
_CHECK_ALL = "check"  # the message of a process to itself
_MESSAGE_SIZE = 17  # bytes: a key and a newline
_STALE = 60.0  # seconds after which the creator of a new FIFO must be dead

_log = logging.getLogger("slotwise.processes")


class Wakeups:
    """The FIFO of this process, and the thread that reads it."""

    def __init__(self, process: LocalProcess) -> None:
        self._process = process
        self._fifo = f"{FIFOS}/{process.owner}"
        self._fd = -1
        self._starting = fork.new_lock()
        self._single = SingleThread("wakeups", self._run, self._starting)
        self._poller = Poller()
        self._waited_at = -_AFTER_WAIT  # when a waiter of this process last began to wait
        self._checks_soon = False  # whether the thread will check everything within _WAITING
        self._was_busy = False  # whether a file could not be checked: its lock was taken
        self._ending = False
        # Errors that were logged, while they last, by the path of the file, or "" for others.
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
                self._open()
            if self._single.thread is None:
                try:
                    self._single.start()
                except RuntimeError as error:
                    return str(error)
        return None

    def notify(self, owner: str, key: str) -> None:
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
        fifos = [entry.name for entry in self._process.directory.entries(FIFOS)]
        return {fifo for fifo in fifos if not fifo.endswith(_NEW)} - {self._process.owner}

    def watch(self, owners: Collection[str]) -> None:
        """Make sure that the thread watches these processes: somebody here waits for them."""
        self._waited_at = time.monotonic()
        if not self._checks_soon or not self._poller.watches(owners, besides=self._process.owner):
            _send(self._fd, _CHECK_ALL)

    def end(self) -> None:
        """End the thread, and wait for that; nobody here may use the directory any more."""
        with self._starting:
            thread = self._single.thread
        if thread is not None:
            self._ending = True
            _send(self._fd, _CHECK_ALL)
            thread.join()
            self._single.thread = None

    def abandon(self) -> None:
        """In a forked child: the FIFO and the thread are the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._poller.abandon()

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

    def _open(self) -> None:
        directory = self._process.directory
        directory.reopen()
        new = self._fifo + _NEW
        try:
            self._create(new)
            fd = directory.open(new, os.O_RDWR)
            if os.fstat(fd).st_mode & 0o600 != 0o600:
                directory.make_usable(new)
            # Renamed only now, when it has a reader: see `_remove_stale`.
            os.rename(new, self._fifo, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
            self._fd = fd
        except OSError as error:
            raise os_error(error, f"{directory.path}/{new}") from error
        try:
            _remove_stale(directory)
        except (BackendError, OSError):
            pass  # left to the next process: ours can be used

    def _create(self, fifo: str) -> None:
        directory = self._process.directory
        directory.unlink(fifo)
        while True:
            try:
                os.mkfifo(fifo, 0o600, dir_fd=directory.fd)
            except FileNotFoundError:
                if not directory.is_in_place():
                    raise
            else:
                return
            try:
                # Again and again: another process may remove it when it ends.
                os.mkdir(FIFOS, 0o700, dir_fd=directory.fd)
            except FileExistsError:
                pass
            else:
                directory.make_usable(FIFOS, 0o700)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._poller.add(self._fd)
        checked_at = time.monotonic()
        while not self._ending:
            # Cleared before the interval is decided: whoever begins to wait after that sees it,
            # and sends a message.
            self._checks_soon = False
            interval = self._interval()
            self._checks_soon = interval <= _WAITING
            due = checked_at + interval
            try:
                ready, ended = self._poller.wait(due - time.monotonic())
                if self._ending:
                    return
                messages = self._read() if ready else ()
                for message in messages:
                    file = self._process.files.get(message)
                    if file is not None:
                        self._check(file, thorough=False)
                checked_at = time.monotonic()
                if ended or _CHECK_ALL in messages or checked_at >= due:
                    self._check_all(ended)
                else:
                    checked_at = due - interval
                self._reported.pop("", None)
            except Exception as error:
                self._report("", error)
                time.sleep(_UNWATCHED)  # it may fail again and again

    def _interval(self) -> float:
        if time.monotonic() - self._waited_at < _AFTER_WAIT or any(
            file.claims.waiting for file in list(self._process.files.values())
        ):
            return _UNWATCHED if self._was_busy or self._poller.misses_exits else _WAITING
        return _HOLDING

    def _read(self) -> set[str]:
        try:
            return {*os.read(self._fd, 4096 * _MESSAGE_SIZE).decode().split()}
        except BlockingIOError:
            return set()

    def _check_all(self, ended: bool) -> None:
        """Check all files; ``ended`` means that a process has ended."""
        files = list(self._process.files.values())
        with_waiters = [file for file in files if file.claims.waiting]
        owners: dict[str, int] = {}
        for file in with_waiters:
            owners |= file.other_owners()
        new = self._poller.watch(owners)  # one of these may have ended before that
        thorough = ended or new or self._was_busy or self._poller.misses_exits
        checked = [self._check(file, thorough=thorough) for file in with_waiters]
        self._was_busy = not all(checked)
        for file in files:
            if file.claims.by_id and not file.claims.waiting:
                self._check(file, thorough=False)
            file.touch()
        self._process.sweeper.sweep_own()
        directory = self._process.directory
        if directory.is_in_place() and not directory.has(self._fifo):  # somebody removed it
            removed = self._fd
            self._open()
            self._poller.add(self._fd)
            self._poller.remove(removed)  # not earlier: other threads use the descriptor

    def _check(self, file: SemaphoreFile, *, thorough: bool) -> bool:
        """Check a file; its errors don't affect others. Return False if it was locked."""
        try:
            is_checked = file.check(thorough=thorough)
        except BackendError as error:
            self._report(file.path, error)
            return True
        self._reported.pop(file.path, None)
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


def _remove_stale(directory: OpenDirectory) -> None:
    """Remove the FIFOs of processes that were killed: they have no reader."""
    for entry in directory.entries(FIFOS):
        fifo = f"{FIFOS}/{entry.name}"
        try:
            if not fifo.endswith(_NEW):
                os.close(directory.open(fifo, os.O_WRONLY))
            elif age_of(entry) > _STALE:
                directory.unlink(fifo)
        except OSError as error:
            if error.errno == errno.ENXIO:
                directory.unlink(fifo)
