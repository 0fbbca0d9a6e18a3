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
from collections.abc import Callable, Generator

from slotwise._core import fork
from slotwise.errors import BackendError
from slotwise.processes._messages import (
    foreign_directory,
    not_a_directory,
    os_error,
    unsafe_directory,
)

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
        try:
            return os.open(filename, flags, 0o600, dir_fd=self.fd)
        except PermissionError:
            if not self._was_never_used(filename):
                raise
            # It was created under a umask that removes the owner's permissions.
            self.make_usable(filename)
            return os.open(filename, flags, 0o600, dir_fd=self.fd)

    def _was_never_used(self, filename: str) -> bool:
        try:
            return self.stat(filename).st_size == 0
        except OSError:
            return False

    def make(self, filename: str, create: Callable[..., None], mode: int) -> None:
        """Create a FIFO or a subdirectory, if there is none."""
        try:
            create(filename, mode, dir_fd=self.fd)
        except FileExistsError:
            return
        self.make_usable(filename, mode)

    def make_usable(self, filename: str, mode: int = 0o600) -> None:
        """Give the owner the permissions that the umask removed."""
        os.chmod(filename, mode, dir_fd=self.fd)

    def stat(self, filename: str) -> os.stat_result:
        return os.stat(filename, dir_fd=self.fd, follow_symlinks=False)

    def has(self, filename: str) -> bool:
        try:
            self.stat(filename)
        except OSError:
            return False
        return True

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
    """Return the descriptor of a directory that only this user can write to."""
    try:
        created = _create(path)
        try:
            fd = os.open(path, _OPEN)
        except PermissionError:
            if not created:
                raise
            _make_usable(path)
            fd = os.open(path, _OPEN)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        found = os.fstat(fd)
        if found.st_uid != os.getuid():
            raise foreign_directory(path, found.st_uid, os.getuid())
        if found.st_mode & 0o022:
            raise unsafe_directory(path, stat.S_IMODE(found.st_mode))
        if created and found.st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    except OSError as error:
        os.close(fd)
        raise os_error(error, path) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _create(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102
    except FileExistsError:
        return False
    return True


def _make_usable(path: str) -> None:
    """Give the owner of a new directory the permissions that the umask removed."""
    if not hasattr(os, "O_PATH"):
        os.chmod(path, 0o700)  # noqa: PTH101
        return
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid == os.getuid():
            # The directory that is open, not the one that the path leads to by now.
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101
    finally:
        os.close(fd)


def _refusal(path: str, error: OSError) -> BackendError:
    if error.errno in (errno.ENOTDIR, errno.ELOOP) and os.path.lexists(path):
        return not_a_directory(path)
    return os_error(error, path)
