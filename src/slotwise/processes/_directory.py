"""OpenDirectory: the directory of the files, checked once and kept open.

Whoever can write to the parent can replace the directory at any moment, by another one or by
a symbolic link. Checking a path says nothing about the next use of that path. So every file
is opened relative to the descriptor that was checked. What the files contain is in `_journal`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator

from slotwise._core import fork
from slotwise._core.redaction import redact
from slotwise.processes._messages import os_error, path_error

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class OpenDirectory:
    """A directory that belongs to this user and that nobody else can write to."""

    __slots__ = ("_identity", "_lock", "fd", "path")

    def __init__(self, path: str) -> None:
        """Open the directory; create it if it doesn't exist.

        Raises:
            BackendError: it can't be created or opened, or others could tamper with it.
        """
        self.path = path
        self._lock = fork.new_lock()
        self.fd = _open_safe(path)
        self._identity = _identity(os.fstat(self.fd))

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this directory."""
        try:
            return _identity(os.lstat(self.path)) == self._identity
        except OSError:
            return False

    def path_exists(self) -> bool:
        """Return whether the path leads to this directory or to something else."""
        return os.path.lexists(self.path)

    def is_same_as(self, other: OpenDirectory) -> bool:
        """Return whether both are one directory, which may be mounted at two paths."""
        return self._identity == other._identity

    def reopen(self) -> None:
        """Open the directory that the path leads to now; create it if it doesn't exist.

        Raises:
            BackendError: it can't be used, or others could tamper with it.
        """
        with self._lock:
            if self.is_in_place():
                return
            fd = _open_safe(self.path)
            try:
                # Under the same descriptor: other threads may be using that right now.
                os.dup2(fd, self.fd, inheritable=False)
                self._identity = _identity(os.fstat(fd))
            finally:
                os.close(fd)

    # ---------------------------------------------------------------- files

    def open(self, filename: str, flags: int) -> int:
        """Open a file in it, never through a symbolic link; new files get mode 600.

        Raises:
            OSError: like os.open.
        """
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # in case it is a FIFO
        return os.open(filename, flags, 0o600, dir_fd=self.fd)

    def has(self, filename: str) -> bool:
        try:
            os.stat(filename, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def has_content(self, filename: str) -> bool:
        """Return whether there is something in it; what is not a file can't be read, but is there.

        An empty file has no state yet.
        """
        try:
            found = os.stat(filename, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        return found.st_size > 0 or not stat.S_ISREG(found.st_mode)

    def unlink(self, filename: str) -> None:
        """Delete a file, if it exists."""
        try:
            os.unlink(filename, dir_fd=self.fd)
        except FileNotFoundError:
            pass

    def entries(self, subdirectory: str = ".") -> Generator[os.DirEntry[str], None, None]:
        """Yield the entries of the directory, or of a subdirectory.

        Raises:
            BackendError: it can't be read.
        """
        try:
            # Opened again for each scan: a duplicate descriptor would share the position.
            fd = os.open(subdirectory, _OPEN, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise os_error(error, self.path) from error
        try:
            with os.scandir(fd) as found:
                yield from found
        finally:
            os.close(fd)  # not earlier: the entries' stat() uses it


def age_of(entry: os.DirEntry[str]) -> float:
    """Return the seconds since a file was last written to; 0 if it is gone."""
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_safe(path: str) -> int:
    """Return the descriptor of a directory that only this user can write to; create it first."""
    try:
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102
        except FileExistsError:
            pass
        fd = os.open(path, _OPEN)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP) or not os.path.lexists(path):
            raise os_error(error, path) from error
        remedy = "not a directory: set SLOTWISE_DIR to one"
        if os.path.islink(path):  # noqa: PTH114
            remedy = "it is a symbolic link: use the path that it points to"
        raise path_error(path, remedy) from error
    found, user = os.fstat(fd), os.getuid()
    if found.st_uid == user and not found.st_mode & 0o022:
        return fd
    os.close(fd)
    if found.st_uid != user:
        raise path_error(
            path,
            f"it belongs to user {found.st_uid}, and this is user {user}:"
            " set SLOTWISE_DIR to a directory of your own",
        )
    raise path_error(
        path,
        f"others can write to it (mode {stat.S_IMODE(found.st_mode):o}):"
        f" run `chmod 700 {redact(path)}`, or set SLOTWISE_DIR to another directory",
    )
