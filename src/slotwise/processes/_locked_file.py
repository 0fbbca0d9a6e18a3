"""LockedFile: one semaphore's file, with the kernel locks on it.

Changes happen under a lock on the first byte. Other locks show who is alive: each process
that has the file open keeps one byte locked, far beyond the end of the file, and the kernel
unlocks it when the process ends, however it ends.

They are POSIX locks, because a forked child doesn't inherit those. But a process loses them
when it closes *any* descriptor of the file. So a process has one descriptor per file, and
only `LockedFile.close` closes it.

What is in the file is in `_journal` and `_lock_queue`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from os import fstat, lstat
from stat import S_ISREG
from time import time_ns
from typing import TYPE_CHECKING

from slotwise.processes._messages import os_error

if TYPE_CHECKING:
    from slotwise.processes._directory import OpenDirectory

# Where the bytes begin that processes lock to show that they are alive.
_LIVENESS_OFFSET = 1 << 40

# struct flock, as in the system's header files.
_IS_BSD = sys.platform == "darwin" or "bsd" in sys.platform
_FLOCK = struct.Struct("@qqihh" if _IS_BSD else "@hhqqi0q")


def _flock(kind: int, byte: int) -> tuple[int, ...]:
    return (byte, 1, 0, kind, 0) if _IS_BSD else (kind, 0, byte, 1, 0)


_TAKEN = (errno.EAGAIN, errno.EACCES)

# Without this flag, reading a file that has changed would write the access time to its inode.
_NO_ATIME = getattr(os, "O_NOATIME", 0)

# The resolution of file times in nanoseconds, with a margin: the tick of the kernel's clock, which
# is at most 10 ms, or a whole second on some file systems.
_SECOND = 10**9
_FINE, _COARSE = _SECOND // 40, 3 * _SECOND
_CHANGED = (-1, -1, -1)


class LockedFile:
    """A file that processes change one at a time."""

    __slots__ = (
        *("_device", "_inode", "_unchanged", "directory", "fd", "filename", "liveness_byte"),
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
        self._inode = self._device = -1
        # The directory, and when it was last changed, when it was seen to have this file. Creating,
        # deleting and moving files changes it; writing to them doesn't.
        self._unchanged = _CHANGED

    def open(self, *, create: bool) -> bool:
        """Open it, and lock this process's byte; return False if the file doesn't exist.

        Raises:
            BackendError: it can't be opened, or the file system has no locks.
        """
        flags = os.O_RDONLY if self.liveness_byte is None else os.O_RDWR
        try:
            self.fd = self._open(flags | (os.O_CREAT if create else 0))
            found = fstat(self.fd)
            if not S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if self.liveness_byte is not None:
                if found.st_mode & 0o600 != 0o600 and not found.st_size:
                    os.fchmod(self.fd, 0o600)  # the umask removed the owner's permissions
                byte = _LIVENESS_OFFSET + self.liveness_byte
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            self._inode, self._device = found.st_ino, found.st_dev
            self._unchanged = _CHANGED
        except OSError as error:
            self.close()
            if not create and isinstance(error, FileNotFoundError):
                return False
            raise os_error(error, self.path) from error
        return True

    def _open(self, flags: int) -> int:
        try:
            return self.directory.open(self.filename, flags | _NO_ATIME)
        except PermissionError:  # O_NOATIME is allowed only to the owner of a file
            return self.directory.open(self.filename, flags)

    def close(self) -> None:
        """Close the file, which drops all locks of this process on it."""
        fd, self.fd = self.fd, -1
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
        if found.st_ino != self._inode or found.st_dev != self._device:
            return False
        # A directory that has just changed could change again within the resolution of its time.
        changed_ns = seen[0]
        if time_ns() - changed_ns > (_FINE if changed_ns % _SECOND else _COARSE):
            self._unchanged = seen
        return True

    def is_linked(self) -> bool:
        """Return whether the file has a path at all; quicker than `is_in_place`."""
        if self._unchanged is not _CHANGED:
            found = fstat(self.directory.fd)
            if (found.st_ctime_ns, found.st_ino, found.st_dev) == self._unchanged:
                return True
            self._unchanged = _CHANGED
        return fstat(self.fd).st_nlink > 0

    def remove(self) -> None:
        """Delete the file; under the lock, so that nobody can be using it."""
        try:
            if self.is_in_place():  # else another file would be deleted
                self.directory.unlink(self.filename)
        except OSError as error:
            raise os_error(error, self.path) from error

    def is_alive(self, liveness_byte: int) -> bool:
        """Return whether the process that locked this byte is alive."""
        if liveness_byte == self.liveness_byte:
            return True  # trying its own lock would drop it
        byte = _LIVENESS_OFFSET + liveness_byte
        try:
            # Shared, so that two processes that check at the same time don't see each other.
            if not self.try_lock(fcntl.LOCK_SH | fcntl.LOCK_NB, byte):
                return True
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, byte)
        except OSError as error:
            raise os_error(error, self.path) from error
        return False

    def try_lock(self, operation: int = fcntl.LOCK_EX | fcntl.LOCK_NB, byte: int = 0) -> bool:
        """Lock the file for a change, unless another process has; return whether it is locked.

        The caller unlocks it with ``lockf(fd, LOCK_UN, 1, 0)``.
        """
        try:
            fcntl.lockf(self.fd, operation, 1, byte)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise os_error(error, self.path) from error
        return True

    def lock_holder(self) -> int | None:
        """Return the pid of the process that has the lock, if the kernel can tell."""
        question = _FLOCK.pack(*_flock(fcntl.F_WRLCK, 0))
        try:
            answer = _FLOCK.unpack_from(fcntl.fcntl(self.fd, fcntl.F_GETLK, question))
        except OSError:
            return None
        kind, pid = (answer[3], answer[2]) if _IS_BSD else (answer[0], answer[4])
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None
