"""Post: how processes wake each other, and learn of each other's death.

Each process has a fifo in the folder and one daemon thread that sleeps until
something comes in there, or a process that ours wait for ends. A letter names a
semaphore and says only "look there": a lost or superfluous one does no harm.

Nothing here decides anything; rooms do. A fifo and not a socket, since the path
of a socket has to be short.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from slotwise._core import fork
from slotwise.errors import BackendError
from slotwise.processes._folder import FIFOS, trouble
from slotwise.processes._open_folder import OpenFolder, age_of
from slotwise.processes._poller import Poller

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess

# How often the thread looks by itself: where processes are waited for whose end the kernel does
# not tell; where any are, in case a letter was lost, or one who came to hold with a ttl was
# stopped; and where nobody waits, to keep cleaners of old files away from what is held, and to
# see whether it is still there.
_BLINDLY = 0.5
_IN_LINE = 1.0
_HOLDING = 60.0

# Who waited will soon do so again: for so long it is not worth going to sleep deeply.
_LINGERS = 2.0

_UNFINISHED = ".new"  # the suffix of a fifo that nobody reads yet
_NUDGE = "look"  # a letter to oneself
_LETTER = 17  # bytes: a key and the end of the line
_STALE = 60.0  # seconds after which a fifo that is still being made never will be

_log = logging.getLogger("slotwise.processes")


class Wakeups:
    """The fifo of this process, and the thread that reads it."""

    def __init__(self, process: LocalProcess) -> None:
        self._process = process
        self._fifo = f"{FIFOS}/{process.owner}"
        self._fd = -1
        self._starting = fork.new_lock()
        self._thread: threading.Thread | None = None
        self._watch = Poller()
        self._waited_at = -_LINGERS  # when one of ours last began to wait
        self._looks_soon = False  # whether the thread will look by itself before long
        self._unfinished = False  # whether a look was in vain: somebody had the lock

    # ------------------------------------------------------- from any thread

    def start(self) -> None:
        """Open the fifo and start the thread, if that was not done before."""
        if self._thread is not None:
            return
        with self._starting:
            if self._fd < 0:
                self._open()
            if self._thread is None:
                # Before it is started: a signal handler may raise while that is waited for, and
                # there must not be two.
                self._thread = threading.Thread(target=self._run, name="slotwise-post", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # at the very end of the interpreter
                    self._thread = None

    def hint(self, owner: str, key: str) -> None:
        """Tell another process to look at a semaphore."""
        try:
            # Also for reading: then nobody gets a SIGPIPE if it ends just now.
            fd = self._process.folder.open(f"{FIFOS}/{owner}", os.O_RDWR)
        except OSError:
            return  # it has ended, and those who wait learn that; or it looks by itself
        try:
            _put(fd, key)
        finally:
            os.close(fd)

    def neighbours(self) -> set[str]:
        """The other processes that can be told something, dead ones perhaps among them."""
        fifos = [entry.name for entry in self._process.folder.entries(FIFOS)]
        return {fifo for fifo in fifos if not fifo.endswith(_UNFINISHED)} - {self._process.owner}

    def expect(self, owners: Collection[str]) -> None:
        """One of ours begins to wait behind these: see to it that the thread watches them."""
        self._waited_at = time.monotonic()
        if not self._looks_soon or not self._watch.knows(owners, besides=self._process.owner):
            _put(self._fd, _NUDGE)

    def abandon(self) -> None:
        """In a forked child: the fifo and the thread are the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._watch.abandon()

    def end(self) -> None:
        """At the end of the process."""
        if self._fd >= 0:
            folder = self._process.folder
            folder.unlink(self._fifo)
            try:
                os.rmdir(FIFOS, dir_fd=folder.fd)
            except OSError:  # there are others
                pass

    # ------------------------------------------------------------- the fifo

    def _open(self) -> None:
        folder = self._process.folder
        folder.follow()
        new = self._fifo + _UNFINISHED
        try:
            self._make(new)
            fd = folder.open(new, os.O_RDWR)
            if os.fstat(fd).st_mode & 0o600 != 0o600:
                folder.make_usable(new)
            # Under its own name only now, when it has a reader: see `_sweep`.
            os.rename(new, self._fifo, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
            self._fd = fd
        except OSError as error:
            raise trouble(error, folder.path / new) from error
        _sweep(folder)

    def _make(self, fifo: str) -> None:
        folder = self._process.folder
        folder.unlink(fifo)
        while True:
            try:
                os.mkfifo(fifo, 0o600, dir_fd=folder.fd)
            except FileNotFoundError:
                if not folder.is_in_place():
                    raise
            else:
                return
            try:
                # Over and over: who ends removes it if nobody else is there.
                os.mkdir(FIFOS, 0o700, dir_fd=folder.fd)
            except FileExistsError:
                pass
            else:
                folder.make_usable(FIFOS, 0o700)

    # ----------------------------------------------------------- the thread

    def _run(self) -> None:
        self._watch.add(self._fd)
        looked_at = time.monotonic()
        while True:
            # Down before it is decided: who begins to wait after that sees it, and nudges.
            self._looks_soon = False
            interval = self._interval()
            self._looks_soon = interval <= _IN_LINE
            due = looked_at + interval
            try:
                ready, ended = self._watch.wait(due - time.monotonic())
                letters = self._read() if ready else ()
                for letter in letters:
                    room = self._process.rooms.get(letter)
                    if room is not None:
                        room.look_after(thorough=False)
                looked_at = time.monotonic()
                if ended or _NUDGE in letters or looked_at >= due:
                    self._look(ended)
                else:
                    looked_at = due - interval
            except Exception as error:
                known = isinstance(error, BackendError)
                _log.warning("waiting for other processes: %s", error, exc_info=not known)
                time.sleep(_BLINDLY)  # not in a circle, should it go on like that

    def _interval(self) -> float:
        if time.monotonic() - self._waited_at < _LINGERS or any(
            room.members.waiting for room in list(self._process.rooms.values())
        ):
            return _BLINDLY if self._unfinished or self._watch.is_blind else _IN_LINE
        return _HOLDING

    def _read(self) -> set[str]:
        try:
            return {*os.read(self._fd, 4096 * _LETTER).decode().split()}
        except BlockingIOError:
            return set()

    def _look(self, ended: bool) -> None:
        """See to all rooms; ``ended`` says that some process has."""
        rooms = list(self._process.rooms.values())
        waiting = [room for room in rooms if room.members.waiting]
        wanted: dict[str, int] = {}
        for room in waiting:
            wanted |= room.strangers()
        new = self._watch.extend(wanted)  # one of these may have ended before that
        thorough = ended or new or self._unfinished or self._watch.is_blind
        looked = [room.look_after(thorough) for room in waiting]
        self._unfinished = not all(looked)
        for room in rooms:
            if room.members.all and not room.members.waiting:
                room.look_after(thorough=False)
            room.touch()
        self._process.sweeper.sweep_ours()
        folder = self._process.folder
        if folder.is_in_place() and not folder.has(self._fifo):  # somebody removed it
            removed = self._fd
            self._open()
            self._watch.add(self._fd)
            self._watch.remove(removed)  # not before: others use the number


def _put(fd: int, letter: str) -> None:
    try:
        os.write(fd, letter.encode() + b"\n")
    except OSError:
        pass  # full of letters, so it will be looked at


def _sweep(folder: OpenFolder) -> None:
    """Remove the fifos of processes that ended without doing so: nobody reads them."""
    for entry in folder.entries(FIFOS):
        fifo = f"{FIFOS}/{entry.name}"
        try:
            if not fifo.endswith(_UNFINISHED):
                os.close(folder.open(fifo, os.O_WRONLY))
            elif age_of(entry) > _STALE:
                folder.unlink(fifo)
        except OSError as error:
            if error.errno == errno.ENXIO:
                folder.unlink(fifo)
