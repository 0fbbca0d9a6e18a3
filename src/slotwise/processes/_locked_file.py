"""The locks on one semaphore's file: who may change it, who is next, and who lives.

Changes happen under a lock on the file's first byte. The other locks say who
lives: each process that has the file open keeps a byte of its own locked, far
behind the end, and the kernel unlocks it when the process ends, however it ends.

They are POSIX locks since a forked child does not inherit those. But a process
loses them when it closes *any* descriptor of the file: so it has one descriptor
for each file, and only `close` closes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from os import fstat, pread, pwrite, stat
from stat import S_ISREG
from typing import TYPE_CHECKING

from slotwise.processes._folder import trouble

if TYPE_CHECKING:
    from slotwise.processes._open_folder import OpenFolder

# Where in the file those show themselves who wait for the first byte: cells, each with since when
# somebody waits and when that was last said. The threads of a process, and processes that happen
# to share a cell, show the longest wait among them.
DOOR = 128
_KNOCK = struct.Struct("<dd")
_CELLS = 16
_NO_KNOCK = bytes(_KNOCK.size)
NO_KNOCKS = _NO_KNOCK * _CELLS
# Who knocks does so more often than this, in seconds, unless it was killed or stopped.
_FORGOTTEN = 0.02

# The locked bytes of processes are out here.
_LIVES = 1 << 40

# As the system's header files have it: a kind of lock, from where, which bytes, and whose.
_IS_BSD = sys.platform == "darwin" or "bsd" in sys.platform
_FLOCK = struct.Struct("@qqihh" if _IS_BSD else "@hhqqi0q")


def _flock(kind: int, byte: int) -> tuple[int, ...]:
    return (byte, 1, 0, kind, 0) if _IS_BSD else (kind, 0, byte, 1, 0)


_BUSY = (errno.EAGAIN, errno.EACCES)


class LockedFile:
    """A file that processes change in turns."""

    __slots__ = ("_inode", "fd", "file", "folder", "life", "path")

    def __init__(self, folder: OpenFolder, file: str, life: int | None) -> None:
        """``life`` is the number of this process's own byte; None only reads."""
        self.folder = folder
        self.file = file
        self.path = folder.path / file  # for messages; it is never used by its path
        self.life = life
        self.fd = -1  # until it is opened
        self._inode = -1

    def open(self, *, create: bool) -> bool:
        """Open it, and show that this process lives; False if there is none.

        Raises:
            BackendError: it can't be opened, or this file system has no locks.
        """
        flags = os.O_RDONLY if self.life is None else os.O_RDWR
        try:
            self.fd = self.folder.open(self.file, flags | (os.O_CREAT if create else 0))
            found = fstat(self.fd)
            if not S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no file")
            if self.life is not None:
                if found.st_mode & 0o600 != 0o600 and not found.st_size:
                    os.fchmod(self.fd, 0o600)  # a umask took even its owner's rights
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LIVES + self.life)
            self._inode = found.st_ino
        except OSError as error:
            self.close()
            if not create and isinstance(error, FileNotFoundError):
                return False
            raise trouble(error, self.path) from error
        return True

    def close(self) -> None:
        """Let go of the file, and of all locks on it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def is_in_place(self) -> bool:
        """Whether newcomers find this file: else it was deleted, moved, or replaced."""
        folder = self.folder
        try:
            # As `folder.stat` does it: this is asked before each acquisition.
            there = stat(self.file, dir_fd=folder.fd, follow_symlinks=False)
        except OSError:
            return False
        return there.st_ino == self._inode and folder.is_in_place()

    def remove(self) -> None:
        """Delete it; under the lock, so that nobody has anything in it who finds it gone."""
        try:
            if self.is_in_place():  # and it is not another that would go
                self.folder.unlink(self.file)
        except OSError as error:
            raise trouble(error, self.path) from error

    # --------------------------------------------------------------- who lives

    def is_alive(self, life: int) -> bool:
        """Whether the process that has this byte lives."""
        if life == self.life:
            return True  # to try its own lock would be to lose it
        at = _LIVES + life
        try:
            # Shared, so that two who look at the same time do not see each other.
            if not self._try(fcntl.LOCK_SH | fcntl.LOCK_NB, at):
                return True
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, at)
        except OSError as error:
            raise trouble(error, self.path) from error
        return False

    # ---------------------------------------------------------- who changes it

    def try_lock(self) -> bool:
        """Take the right to change it, until its first byte is unlocked; False if it is taken."""
        try:
            return self._try(fcntl.LOCK_EX | fcntl.LOCK_NB, 0)
        except OSError as error:
            raise trouble(error, self.path) from error

    def _try(self, how: int, byte: int) -> bool:
        try:
            fcntl.lockf(self.fd, how, 1, byte)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def lock_holder(self) -> int | None:
        """The pid of who has that right now; None if nobody has, or the kernel doesn't tell."""
        asked = _FLOCK.pack(*_flock(fcntl.F_WRLCK, 0))
        try:
            answer = _FLOCK.unpack_from(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        except OSError:
            return None
        kind, pid = (answer[3], answer[2]) if _IS_BSD else (answer[0], answer[4])
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None

    def knock(self, since: float, now: float) -> None:
        """Show that one of this process has waited for that right since then.

        It has to be shown again and again.
        """
        waiting, shown_at = _KNOCK.unpack(self._knocks()[self._cell()])
        if since <= waiting or _is_void(shown_at, now):
            self._show(self._cell(), since, now)

    def is_anothers_turn(self, since: float, now: float) -> bool:
        """Whether to let somebody pass, if one has waited only since then; 0 if not at all."""
        theirs = False
        for cell, knock in enumerate(self._knocks()):
            if knock == _NO_KNOCK:
                continue
            waiting, shown_at = _KNOCK.unpack(knock)
            if _is_void(shown_at, now):
                self._show(cell, 0.0, 0.0)
            elif 0 < waiting < (since or now):
                theirs = True
        return theirs

    def stop_knocking(self, since: float) -> None:
        """Let nobody wait for one who has waited since then."""
        cell = self._cell()
        if _KNOCK.unpack(self._knocks()[cell])[0] == since:
            self._show(cell, 0.0, 0.0)

    def _cell(self) -> int:
        return (self.life or 0) % _CELLS

    def _knocks(self) -> list[bytes]:
        """For each cell, since when somebody waits, 0 if nobody, and when that was last said."""
        try:
            raw = pread(self.fd, len(NO_KNOCKS), DOOR).ljust(len(NO_KNOCKS), b"\0")
        except OSError as error:
            raise trouble(error, self.path) from error
        return [raw[at : at + _KNOCK.size] for at in range(0, len(raw), _KNOCK.size)]

    def _show(self, cell: int, since: float, now: float) -> None:
        try:
            pwrite(self.fd, _KNOCK.pack(since, now), DOOR + cell * _KNOCK.size)
        except OSError as error:
            raise trouble(error, self.path) from error


def _is_void(shown_at: float, now: float) -> bool:
    """Whether who knocked then was killed or stopped since; or nobody did, and it is garbage.

    There is no checksum, as each cell has many writers: what says nothing about this very
    moment is nothing. A time in the future would keep everybody waiting for it, and not
    a number is never close.
    """
    return not abs(now - shown_at) <= _FORGOTTEN
