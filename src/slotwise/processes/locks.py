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
from os import fstat, pread, pwrite
from pathlib import Path

from slotwise.processes.folder import trouble

# Where in the file the one shows itself who has waited long for the first byte.
DOOR = 128
_KNOCK = struct.Struct("<dd")
NO_KNOCK = bytes(_KNOCK.size)
# Who knocks does so more often than this, in seconds, unless it gave up or was stopped.
_FORGOTTEN = 0.02

# The locked bytes of processes are out here.
_LIVES = 1 << 40

_BUSY = (errno.EAGAIN, errno.EACCES)


class LockedFile:
    """A file that processes change in turns."""

    __slots__ = ("fd", "life", "path")

    def __init__(self, path: Path, life: int | None) -> None:
        """``life`` is the number of this process's own byte; None only reads.

        Raises:
            BackendError: the file can't be opened, or not be locked.
        """
        self.path = path
        self.life = life
        self.fd = -1
        self.open()

    def open(self) -> None:
        """Open it, and show that this process lives.

        Raises:
            BackendError: it can't be opened, or this file system has no locks.
        """
        try:
            if self.life is None:
                self.fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
            else:
                self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LIVES + self.life)
        except OSError as error:
            self.close()
            raise trouble(error, self.path) from error

    def close(self) -> None:
        """Let go of the file, and of all locks on it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def is_deleted(self) -> bool:
        """Whether the file has no name any more: newcomers will make another."""
        return fstat(self.fd).st_nlink == 0

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
        """Take the right to change it; False while somebody else has it."""
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

    def unlock(self) -> None:
        """Give that right back; does no harm if it was not had."""
        if self.fd >= 0:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, 0)

    def knock(self, since: float, now: float) -> None:
        """Show that one of this process has waited for that right since then.

        Only the longest wait is shown; it has to be shown again and again.
        """
        waiting, shown_at = self._door()
        if since <= waiting or now - shown_at > _FORGOTTEN:
            pwrite(self.fd, _KNOCK.pack(since, now), DOOR)

    def is_anothers_turn(self, since: float, now: float) -> bool:
        """Whether to let somebody pass, if one has waited only since then; 0 if not at all."""
        waiting, shown_at = self._door()
        if waiting and now - shown_at > _FORGOTTEN:  # it gave up, or was stopped
            pwrite(self.fd, NO_KNOCK, DOOR)
            return False
        return 0 < waiting < (since or now)

    def stop_knocking(self, since: float) -> None:
        if self._door()[0] == since:
            pwrite(self.fd, NO_KNOCK, DOOR)

    def _door(self) -> tuple[float, float]:
        """Since when the one who knocks has waited, and when it last did."""
        raw = pread(self.fd, _KNOCK.size, DOOR)
        return _KNOCK.unpack(raw) if len(raw) == _KNOCK.size else (0.0, 0.0)
