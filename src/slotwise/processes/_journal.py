"""Journal: read and write one semaphore's file: a snapshot, the records since, and a root.

    0     root          where the snapshot starts and the records end, with a checksum; twice
    128   lock queue    see `_lock_queue`
    384   ...           a snapshot and, right after it, the records of later changes

A change appends a record, or writes a new snapshot where nothing is in use, and then
overwrites the older of the two roots. That last write, of 64 bytes, commits the change: a
process that is killed before it leaves the old state, and after it the new one. A process
that has read up to some root only has to read what came since.

Writing needs the file's lock, which is not taken here. Reading needs none: what is half
written isn't committed yet.
"""

from __future__ import annotations

import json
import os
import struct
from os import fstat, pread, pwrite
from typing import Any
from zlib import crc32

from slotwise.errors import BackendError
from slotwise.processes import _lock_queue
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._locked_file import LockedFile
from slotwise.processes._messages import newer_release, older_release, os_error
from slotwise.processes._state import ClaimEvent, Record, State

_encode = json.JSONEncoder(separators=(",", ":")).encode

_MAGIC = b"slotwise"
VERSION = 1
RULES = State.RULES

# magic, version, rules, sequence number, epoch, where the snapshot starts, where the records end
_ROOT = struct.Struct("<8sHHQQQQ16x")
_ROOT_SIZE = 64  # the checksum is in its last bytes
_CHECKSUM = struct.Struct("<I")  # the same in every version: it makes newer roots recognizable
_NO_ROOTS = bytes(2 * _ROOT_SIZE)

_HEAD_SIZE = _lock_queue.OFFSET + len(_lock_queue.EMPTY)

_FRAME = struct.Struct("<II")  # length and checksum, before each record

# Space for every change of a small semaphore is reserved when its file is created, so that
# slots can still be released when the disk is full.
_RESERVED = 32 * 1024
# A new snapshot is written when the records are longer than this, and than twice the last one.
_COMPACT_AFTER = 8 * 1024


class Damaged(Exception):
    """Internal: the contents are invalid. Under the lock that means corruption."""


class Journal:
    """The contents of one semaphore's file, as far as this process has read them."""

    __slots__ = (
        *("_end", "_epoch", "_file", "_head", "_sequence", "_snapshot_size"),
        *("_start", "in_sync", "state"),
    )

    def __init__(self, file: LockedFile) -> None:
        self._file = file
        self.state: State | None = None  # as last read; None if there was none
        # Whether `state` is what the file said up to `_sequence`. The owner of the file clears it
        # when it closes the file.
        self.in_sync = False
        self._sequence = self._epoch = self._start = self._end = 0
        self._snapshot_size = 0  # of the last one, in bytes
        # The roots as last read or written, and an empty lock queue.
        self._head = _NO_ROOTS + _lock_queue.EMPTY

    # ---------------------------------------------------------------- reading

    def is_current(self) -> bool:
        """Return whether nothing was written since this process last read or wrote.

        If so, nobody is queueing for the lock either. The file may have been deleted.
        """
        return self.in_sync and pread(self._file.fd, _HEAD_SIZE, 0) == self._head

    def catch_up(self) -> list[ClaimEvent] | None:
        """Apply what others wrote; return the events, or None if only the state is known.

        Without the lock it may miss the latest changes, or raise Damaged.
        """
        try:
            roots = pread(self._file.fd, 2 * _ROOT_SIZE, 0)
        except OSError as error:
            raise os_error(error, self._file.path) from error
        # Fewer bytes: somebody has truncated it, and nothing may be added to what is left.
        if self.in_sync and self._head.startswith(roots) and len(roots) == len(_NO_ROOTS):
            return []
        root = self._newest(roots)
        if root is None:
            self.state, self.in_sync = None, False
            return None
        sequence, epoch, start, end, written_in = root
        events: list[ClaimEvent] | None
        try:
            if (
                self.state is None
                or not self.in_sync
                or epoch != self._epoch
                or sequence <= self._sequence  # the last root was damaged, and its change is gone
                or start != self._start
                or end < self._end
            ):
                self.in_sync = False
                (snapshot, *records), size = self._read(start, end, epoch)
                state = State.restore(snapshot)
                self._snapshot_size = size
                events = None
            else:
                records, _ = self._read(self._end, end, epoch)
                state = self.state
                events = []
            self.in_sync = False  # until everything is applied
            for record in records:
                applied = state.apply(record)
                if events is not None:
                    events += applied
        except (Damaged, OSError):
            raise  # not about a record: a signal handler that raises TimeoutError comes here, too
        except Exception as error:
            self.state = None  # it may be half changed
            if written_in != (VERSION, RULES):
                raise older_release(self._file.path, *self._formats(written_in)) from error
            # The checksums are right, but slotwise wouldn't have written this.
            raise Damaged(f"invalid record: {type(error).__name__}: {error}") from error
        self._sequence, self._epoch, self._start, self._end = sequence, epoch, start, end
        self._head = roots + _lock_queue.EMPTY
        self.state = state
        self.in_sync = True
        return events

    def _newest(self, roots: bytes) -> tuple[int, int, int, int, tuple[int, int]] | None:
        """Return the latest valid root; None if nothing was ever committed to the file.

        Raises:
            BackendError: a newer release wrote it.
            Damaged: there are only invalid ones.
        """
        best: tuple[int, int, int, int, tuple[int, int]] | None = None
        for at in (0, _ROOT_SIZE):
            root = roots[at : at + _ROOT_SIZE]
            if len(root) < _ROOT_SIZE or root[:8] != _MAGIC:
                continue
            _, version, rules, sequence, epoch, start, end = _ROOT.unpack_from(root)
            (checksum,) = _CHECKSUM.unpack_from(root, _ROOT_SIZE - _CHECKSUM.size)
            if checksum != crc32(root[: -_CHECKSUM.size]):
                continue
            if (version, rules) > (VERSION, RULES):
                raise newer_release(self._file.path, *self._formats((version, rules)))
            if best is None or sequence > best[0]:
                best = sequence, epoch, start, end, (version, rules)
        # The very first root goes into the second place. If the first place is empty, the process
        # that created the file didn't get beyond that, and nothing was committed.
        if best is None and roots[:_ROOT_SIZE].strip(b"\0"):
            raise Damaged("no valid root")
        return best

    def _formats(self, theirs: tuple[int, int]) -> tuple[str, str]:
        """Return how messages write their format and ours."""
        return f"{theirs[0]}.{theirs[1]}", f"{VERSION}.{RULES}"

    def _read(self, start: int, end: int, epoch: int) -> tuple[list[Any], int]:
        """Return the records between two offsets, of this epoch, and the length of the first."""
        try:
            raw = pread(self._file.fd, end - start, start)
        except OSError as error:
            raise os_error(error, self._file.path) from error
        if len(raw) != end - start:
            raise Damaged(f"truncated at offset {start + len(raw)} of {end}")
        records = []
        at = first = 0
        while at < len(raw):
            if len(raw) - at < _FRAME.size:
                raise Damaged(f"incomplete record at offset {start + at}")
            length, checksum = _FRAME.unpack_from(raw, at)
            body = raw[at + _FRAME.size : at + _FRAME.size + length]
            if len(body) != length or crc32(body, epoch) != checksum:
                raise Damaged(f"wrong checksum at offset {start + at}")
            records.append(json.loads(body))
            first = first or length
            at += _FRAME.size + length
        return records, first

    # ---------------------------------------------------------------- writing
    # Only under the lock, after `catch_up`.

    def create(self, state: State) -> None:
        """Write the first state into a new file."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fd, 0, _RESERVED)
            else:
                pwrite(self._file.fd, bytes(_RESERVED), 0)
        except OSError as error:
            raise os_error(error, self._file.path) from error
        self._sequence = 0
        # Not that of an earlier one: the file may have been emptied, and others have read that.
        self._epoch = int.from_bytes(os.urandom(6), "little")
        self._start = self._end = _HEAD_SIZE
        self._head = _NO_ROOTS + _lock_queue.EMPTY
        self._write_snapshot(state, _HEAD_SIZE)
        self.state = state
        self.in_sync = True

    def write(self, record: Record) -> list[ClaimEvent]:
        """Apply a change to the state, and commit it to the file.

        If it raises, the file is unchanged. If the state may have changed, it is no longer in
        sync, and is read again before its next use.
        """
        state: Any = self.state
        events: list[ClaimEvent] = state.apply(record)
        self.in_sync = False  # until it is committed
        start = self._start
        end = self._commit(_encode(record), self._end, self._epoch, start)
        self.in_sync = True
        if end - start > _COMPACT_AFTER + 3 * self._snapshot_size:
            self._compact(state)
        return events

    def _compact(self, state: State) -> None:
        """Replace the snapshot and the records by a new snapshot."""
        try:
            self._write_snapshot(state, self._end)
            wanted = max(self._end, _RESERVED)
            if self._start == _HEAD_SIZE and fstat(self._file.fd).st_size > 4 * wanted:
                os.ftruncate(self._file.fd, wanted)
        except (BackendError, OSError):
            pass  # the disk is full; the old snapshot and its records are kept for now

    def _write_snapshot(self, state: State, end: int) -> None:
        """Write it in front of what is in use if it fits there, otherwise after it, at ``end``."""
        snapshot = _encode(state.snapshot())
        fits = _HEAD_SIZE + _FRAME.size + len(snapshot) <= self._start
        at = _HEAD_SIZE if fits else end
        self._commit(snapshot, at, self._epoch + 1, at)
        self._snapshot_size = len(snapshot)

    def _commit(self, text: str, at: int, epoch: int, start: int) -> int:
        """Write a record, and then the root that commits it; return where the record ends."""
        body = text.encode()
        # The epoch is in the checksum, so that remains of an earlier one never pass for a record.
        framed = _FRAME.pack(len(body), crc32(body, epoch)) + body
        length = len(framed)
        end = at + length
        sequence = self._sequence + 1
        root = _ROOT.pack(_MAGIC, VERSION, RULES, sequence, epoch, start, end)
        root += _CHECKSUM.pack(crc32(root))
        head = self._head
        fd = self._file.fd
        try:
            if pwrite(fd, framed, at) != length:
                self._write_rest(framed, at)
            if sequence & 1:
                pwrite(fd, root, _ROOT_SIZE)
                self._head = head[:_ROOT_SIZE] + root + _lock_queue.EMPTY
            else:
                pwrite(fd, root, 0)
                self._head = root + head[_ROOT_SIZE:]
        except OSError as error:
            raise os_error(error, self._file.path) from error
        self._sequence = sequence
        self._epoch = epoch
        self._start = start
        self._end = end
        return end

    def _write_rest(self, data: bytes, at: int) -> None:
        """Write what a short write left over; usually this raises, since the disk is full."""
        while data:
            written = pwrite(self._file.fd, data, at)
            data, at = data[written:], at + written


def read_name(directory: OpenDirectory, filename: str) -> str | None:
    """Return the name of the semaphore in a file that this process doesn't have open."""
    file = LockedFile(directory, filename)
    journal = Journal(file)
    try:
        if not file.open(create=False):
            return None
        journal.catch_up()
        return None if journal.state is None else journal.state.name
    except (Damaged, BackendError):
        return None
    finally:
        file.close()
