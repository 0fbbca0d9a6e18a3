"""OpenFolder: the folder of the files, checked once and used by its descriptor ever after.

Whoever may write to the parent can put another folder, or a link to one, in its place at
any moment. A check by path says nothing about the next use by path; so everything here
happens in the very folder that was checked. What the files mean is the journal's business.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator
from pathlib import Path

from slotwise._core import fork
from slotwise.errors import BackendError
from slotwise.processes._folder import trouble

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class OpenFolder:
    """A folder of this user's that nobody else may write to."""

    __slots__ = ("_identity", "_lock", "_where", "fd", "path")

    def __init__(self, path: Path) -> None:
        """Open the folder, which is made if it is missing.

        Raises:
            BackendError: it can't be made or opened, or others could tamper with it.
        """
        self.path = path
        self._where = str(path)  # a Path takes longer
        self._lock = fork.new_lock()
        self.fd = _open_safe(path)
        self._identity = _identity(os.fstat(self.fd))

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def is_in_place(self) -> bool:
        """Whether newcomers find this folder: else it was deleted, moved, or replaced."""
        try:
            return _identity(os.lstat(self._where)) == self._identity
        except OSError:
            return False

    def is_there(self) -> bool:
        """Whether there is anything in its place."""
        return os.path.lexists(self._where)

    def is_same_as(self, other: OpenFolder) -> bool:
        """Whether both are one folder, by whatever paths: mounted twice, for one."""
        return self._identity == other._identity

    def follow(self) -> None:
        """Go to the folder that is in its place now, if it is another; made if there is none.

        Raises:
            BackendError: it can't be used, or is not safe.
        """
        with self._lock:
            if self.is_in_place():
                return
            fd = _open_safe(self.path)
            try:
                # Under the number that it has: other threads may be using that right now.
                os.dup2(fd, self.fd, inheritable=False)
                self._identity = _identity(os.fstat(fd))
            finally:
                os.close(fd)

    # ---------------------------------------------------------------- its files

    def open(self, file: str, flags: int) -> int:
        """Open a file in it, never through a link; a new one is for its owner alone.

        Raises:
            OSError: as ever.
        """
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # which a fifo in its place would need
        try:
            return os.open(file, flags, 0o600, dir_fd=self.fd)
        except PermissionError:
            if not self._was_never_used(file):
                raise
            # It was made under a umask that takes even its owner's rights.
            self.make_usable(file)
            return os.open(file, flags, 0o600, dir_fd=self.fd)

    def _was_never_used(self, file: str) -> bool:
        try:
            return self.stat(file).st_size == 0
        except OSError:
            return False

    def make_usable(self, file: str, mode: int = 0o600) -> None:
        """Give the owner the rights that a umask took."""
        os.chmod(file, mode, dir_fd=self.fd)

    def stat(self, file: str) -> os.stat_result:
        return os.stat(file, dir_fd=self.fd, follow_symlinks=False)

    def has(self, file: str) -> bool:
        try:
            self.stat(file)
        except OSError:
            return False
        return True

    def unlink(self, file: str) -> None:
        """Remove a file, if it is there."""
        try:
            os.unlink(file, dir_fd=self.fd)
        except FileNotFoundError:
            pass

    def entries(self, inner: str = ".") -> Generator[os.DirEntry[str], None, None]:
        """What is in it, or in a folder in it, as far as the caller goes on.

        Raises:
            BackendError: it can't be read.
        """
        try:
            # Opened anew: descriptors that share a position would disturb each other.
            fd = os.open(inner, _OPEN, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise trouble(error, self.path) from error
        try:
            with os.scandir(fd) as found:
                yield from found
        finally:
            os.close(fd)  # not before: entries are looked at by it


def age_of(entry: os.DirEntry[str]) -> float:
    """The seconds since a file was last written to; 0 if it is gone."""
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_safe(path: Path) -> int:
    """The descriptor of a folder that only this user may write to."""
    try:
        made = _make(path)
        try:
            fd = os.open(path, _OPEN)
        except PermissionError:
            if not made:
                raise
            _make_usable(path)
            fd = os.open(path, _OPEN)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        found = os.fstat(fd)
        if found.st_uid != os.getuid():
            raise BackendError(
                f"{path}: it belongs to user {found.st_uid}, and this is user {os.getuid()}:"
                f" set SLOTWISE_DIR to a folder of your own"
            )
        if found.st_mode & 0o022:
            raise BackendError(
                f"{path}: others may write to it (mode {stat.S_IMODE(found.st_mode):o}):"
                f" chmod 700 it, or set SLOTWISE_DIR to another"
            )
        if made and found.st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    except OSError as error:
        os.close(fd)
        raise trouble(error, path) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _make_usable(path: Path) -> None:
    """Give a folder that this process made the rights that a umask took even from its owner."""
    if not hasattr(os, "O_PATH"):
        path.chmod(0o700)
        return
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid == os.getuid():
            # The very folder that is open, whatever is in its place by now.
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101
    finally:
        os.close(fd)


def _refusal(path: Path, error: OSError) -> BackendError:
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        if path.is_symlink():
            return BackendError(f"{path}: it is a symbolic link: name the folder that it leads to")
        if path.exists():
            return BackendError(
                f"{path}: it is no folder: remove it, or set SLOTWISE_DIR to another"
            )
    return trouble(error, path)
