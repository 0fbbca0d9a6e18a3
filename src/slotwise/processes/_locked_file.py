"""LockedFile: one limit's file, with the kernel locks on it.

Changes happen under a lock on the first byte. Other locks show who is alive: each process
that has the file open keeps one byte locked, far beyond the end of the file, and the kernel
unlocks it when the process ends, however it ends.

They are POSIX locks, because a forked child doesn't inherit those. But a process loses them
when it closes *any* descriptor of the file. So a process has one descriptor per file, and
only `LockedFile.close` closes it.

Kernel locks have no order. So a process that finds the lock taken writes into the file since
when it has been waiting, and processes that came later don't even try the lock. It has to
repeat that: an entry that isn't renewed is ignored, in case its process was killed or stopped.
This *queue* only makes the lock fairer.

Everything here may raise an OSError. What else is in the file is in `_file_journal`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from os import fstat, lstat, pread, pwrite
from stat import S_ISREG
from time import time_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.processes._directory import OpenDirectory

# Where the bytes begin that processes lock to show that they are alive.
_LIVENESS_OFFSET = 1 << 40

# struct flock, as in the system's header files.
_IS_BSD = sys.platform == "darwin" or "bsd" in sys.platform
_FLOCK = struct.Struct("@qqihh" if _IS_BSD else "@hhqqi0q")

# The resolution of file times in nanoseconds, with a margin: the tick of the kernel's clock, which
# is at most 10 ms, or a whole second on some file systems.
_SECOND = 10**9
_FINE, _COARSE = _SECOND // 40, 3 * _SECOND
_CHANGED = (-1, -1, -1)

# The cells of the queue in the file. A cell has two times: since when somebody has been waiting,
# and when that was last renewed. Threads of one process, and processes that happen to share a
# cell, show the longest wait among them.
QUEUE_OFFSET = 128
_CELL = struct.Struct("<dd")
_CELLS = 16
_EMPTY_CELL = bytes(_CELL.size)
EMPTY_QUEUE = _EMPTY_CELL * _CELLS

# A waiter renews its entry more often than this, in seconds, unless it was killed or stopped.
_EXPIRES_AFTER = 0.02


class LockedFile:
    """A file that processes change one at a time."""

    __slots__ = (
        "_identity",
        "_own_cell",
        "_unchanged",
        "directory",
        "fd",
        "filename",
        "liveness_byte",
        "path",
    )

    def __init__(
        self, directory: OpenDirectory, filename: str, liveness_byte: int | None = None
    ) -> None:
        """``liveness_byte`` is the byte that this process locks; None opens it for reading."""
        self.directory = directory
        self.filename = filename
        self.path = f"{directory.path}/{filename}"
        self.liveness_byte = liveness_byte
        self.fd = -1  # while it is not open
        self._identity = (-1, -1)
        # The directory, and when it was last changed, when it was seen to have this file. Creating,
        # deleting and moving files changes it; writing to them doesn't.
        self._unchanged = _CHANGED
        self._own_cell = (liveness_byte or 0) % _CELLS

    def open(self, *, create: bool) -> None:
        """Open it, and lock this process's byte."""
        # Without O_NOATIME, reading a changed file would write the access time to its inode.
        flags = getattr(os, "O_NOATIME", 0)
        flags |= os.O_RDONLY if self.liveness_byte is None else os.O_RDWR
        try:
            self.fd = self.directory.open(self.filename, flags | (os.O_CREAT if create else 0))
            found = fstat(self.fd)
            if not S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if self.liveness_byte is not None:
                byte = _LIVENESS_OFFSET + self.liveness_byte
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            self._identity = found.st_ino, found.st_dev
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, which drops all locks of this process on it."""
        fd, self.fd = self.fd, -1
        self._identity, self._unchanged = (-1, -1), _CHANGED
        if fd >= 0:
            os.close(fd)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this file; if not, it was deleted or replaced."""
        try:
            # By the whole path, to notice a directory that was replaced, too. The file itself is
            # inspected only if the directory has changed: after each stat, the next write has to
            # store its time at full resolution, which takes longer than the write.
            found = lstat(self.directory.path)
            seen = found.st_ctime_ns, found.st_ino, found.st_dev
            if seen == self._unchanged:
                return True
            found = lstat(self.path)
        except OSError:
            return False
        if (found.st_ino, found.st_dev) != self._identity:
            return False
        # A directory that has just changed could change again within the resolution of its time.
        changed_ns = seen[0]
        if time_ns() - changed_ns > (_FINE if changed_ns % _SECOND else _COARSE):
            self._unchanged = seen
        return True

    # ----------------------------------------------------------------- its locks

    def is_alive(self, liveness_byte: int) -> bool:
        """Return whether the process that locked this byte is alive."""
        if liveness_byte == self.liveness_byte:
            return True  # trying its own lock would drop it
        byte = _LIVENESS_OFFSET + liveness_byte
        # Shared, so that two processes that check at the same time don't see each other.
        if not self.try_lock(fcntl.LOCK_SH | fcntl.LOCK_NB, byte):
            return True
        fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, byte)
        return False

    def try_lock(self, operation: int = fcntl.LOCK_EX | fcntl.LOCK_NB, byte: int = 0) -> bool:
        """Lock the file for a change, unless another process has; return whether it is locked.

        The caller unlocks it with ``lockf(fd, LOCK_UN, 1)``.
        """
        try:
            fcntl.lockf(self.fd, operation, 1, byte)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def lock_holder(self) -> int | None:
        """Return the pid of the process that has the lock, if the kernel can tell."""
        asked = (0, 1, 0, fcntl.F_WRLCK, 0) if _IS_BSD else (fcntl.F_WRLCK, 0, 0, 1, 0)
        try:
            answer = _FLOCK.unpack_from(fcntl.fcntl(self.fd, fcntl.F_GETLK, _FLOCK.pack(*asked)))
        except OSError:
            return None
        kind, pid = (answer[3], answer[2]) if _IS_BSD else (answer[0], answer[4])
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None

    # ------------------------------------------------------- the queue for its lock

    def announce(self, since: float, now: float) -> None:
        """Show that this process has been waiting ``since`` then; to be repeated."""
        own = self._own_cell
        shown_since, renewed_at = _CELL.unpack(self._cells()[own])
        if since <= shown_since or _is_expired(renewed_at, now):
            self._show(own, since, now)

    def is_anothers_turn(self, since: float, now: float) -> bool:
        """Return whether somebody has been waiting longer than ``since``."""
        found = False
        for number, cell in enumerate(self._cells()):
            if cell == _EMPTY_CELL:
                continue
            shown_since, renewed_at = _CELL.unpack(cell)
            if _is_expired(renewed_at, now):
                self._show(number, 0.0, 0.0)
            elif 0 < shown_since < since:
                found = True
        return found

    def leave(self, since: float) -> None:
        """Remove the entry of a thread that has been waiting ``since`` then, if it is shown."""
        own = self._own_cell
        if _CELL.unpack(self._cells()[own])[0] == since:
            self._show(own, 0.0, 0.0)

    def _cells(self) -> list[bytes]:
        raw = pread(self.fd, len(EMPTY_QUEUE), QUEUE_OFFSET).ljust(len(EMPTY_QUEUE), b"\0")
        return [raw[at : at + _CELL.size] for at in range(0, len(raw), _CELL.size)]

    def _show(self, number: int, since: float, now: float) -> None:
        pwrite(self.fd, _CELL.pack(since, now), QUEUE_OFFSET + number * _CELL.size)


def _is_expired(renewed_at: float, now: float) -> bool:
    """Return whether an entry was not renewed in time, or is garbage.

    There is no checksum, since a cell has many writers; so only a time close to now counts. A
    time in the future would make everybody wait until then, and NaN is never close.
    """
    return not abs(now - renewed_at) <= _EXPIRES_AFTER
