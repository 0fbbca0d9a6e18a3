"""Queue for a file's lock: a process that found it taken gets it before later arrivals.

Kernel locks have no order. So a process that finds the lock taken writes into the file since
when it has been waiting, and processes that came later don't even try the lock. It has to
repeat that: an entry that isn't renewed is ignored, in case its process was killed or stopped.

The queue only makes the lock fairer. The lock itself is the kernel's: see `_locked_file`.
"""

from __future__ import annotations

import struct
from os import pread, pwrite
from typing import TYPE_CHECKING

from slotwise.processes._messages import os_error

if TYPE_CHECKING:
    from slotwise.processes._locked_file import LockedFile

# The cells of the queue in the file. A cell has two times: since when somebody has been waiting,
# and when that was last renewed. Threads of one process, and processes that happen to share a
# cell, show the longest wait among them.
OFFSET = 128
_CELL = struct.Struct("<dd")
_CELLS = 16
_EMPTY_CELL = bytes(_CELL.size)
EMPTY = _EMPTY_CELL * _CELLS

# A waiter renews its entry more often than this, in seconds, unless it was killed or stopped.
_EXPIRES_AFTER = 0.02


class LockQueue:
    """The processes that are waiting for the lock of one file."""

    __slots__ = ("_file",)

    def __init__(self, file: LockedFile) -> None:
        self._file = file

    def announce(self, since: float, now: float) -> None:
        """Show that this process has been waiting ``since`` then; to be repeated."""
        own = self._own_cell()
        shown_since, renewed_at = _CELL.unpack(self._read()[own])
        if since <= shown_since or _is_expired(renewed_at, now):
            self._write(own, since, now)

    def is_anothers_turn(self, since: float, now: float) -> bool:
        """Return whether somebody has been waiting longer than ``since``; 0 means a newcomer."""
        found = False
        for number, cell in enumerate(self._read()):
            if cell == _EMPTY_CELL:
                continue
            shown_since, renewed_at = _CELL.unpack(cell)
            if _is_expired(renewed_at, now):
                self._write(number, 0.0, 0.0)
            elif 0 < shown_since < (since or now):
                found = True
        return found

    def leave(self, since: float) -> None:
        """Remove the entry of a thread that has been waiting ``since`` then, if it is shown."""
        own = self._own_cell()
        if _CELL.unpack(self._read()[own])[0] == since:
            self._write(own, 0.0, 0.0)

    def _own_cell(self) -> int:
        return (self._file.liveness_byte or 0) % _CELLS

    def _read(self) -> list[bytes]:
        try:
            raw = pread(self._file.fd, len(EMPTY), OFFSET).ljust(len(EMPTY), b"\0")
        except OSError as error:
            raise os_error(error, self._file.path) from error
        return [raw[at : at + _CELL.size] for at in range(0, len(raw), _CELL.size)]

    def _write(self, number: int, since: float, now: float) -> None:
        try:
            pwrite(self._file.fd, _CELL.pack(since, now), OFFSET + number * _CELL.size)
        except OSError as error:
            raise os_error(error, self._file.path) from error


def _is_expired(renewed_at: float, now: float) -> bool:
    """Return whether an entry was not renewed in time, or is garbage.

    There is no checksum, since a cell has many writers; so only a time close to now counts. A
    time in the future would make everybody wait until then, and NaN is never close.
    """
    return not abs(now - renewed_at) <= _EXPIRES_AFTER
