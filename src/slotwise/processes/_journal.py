"""Journal: one semaphore's file. A snapshot, the records since, and a root that says which count.

    0     root    where all that counts begins and ends, with a checksum; twice
    128   door    who waits for the lock, and since when
    384   ...     a snapshot and, right behind it, the records of later changes

A change appends a record, or a new snapshot in a place that is not in use, and
then overwrites the older of the two roots. That last write, of 64 bytes, is the
change: a process that is killed before it leaves the old state, after it the
new one. Who has read up to some root needs to read only what came since.

Changes happen under a lock, reading needs none: what is half written does not
count yet.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from os import fstat, pread, pwrite
from typing import Any
from zlib import crc32

from slotwise.errors import BackendError, SemaphoreClosed
from slotwise.processes._checks import check_record, check_snapshot
from slotwise.processes._folder import trouble
from slotwise.processes._locked_file import DOOR, NO_KNOCKS, LockedFile
from slotwise.processes._open_folder import OpenFolder
from slotwise.processes._state import RULES, Event, Record, State

_MAGIC = b"slotwise"
VERSION = 1

# magic, version, rules, sequence number, epoch, where the snapshot starts, where the records end
_ROOT = struct.Struct("<8sHHQQQQ16x")
_ROOT_SIZE = 64  # the checksum is in its last bytes
_SUM = struct.Struct("<I")  # in whatever format: a root of a newer release is known by it
_MOST = 1 << 62
_NO_ROOTS = bytes(2 * _ROOT_SIZE)

_HEAD = DOOR + len(NO_KNOCKS)
_FIRST = _HEAD

_FRAME = struct.Struct("<II")  # length and checksum, before each record

# Room for every change of a small semaphore is taken when its file is made, so
# that a disk that fills up later does not keep its slots from being given back.
_RESERVED = 32 * 1024
# A new snapshot is made when the records are longer than this and than twice the last one.
_LONG = 8 * 1024


def _make_text() -> Callable[[object], str]:
    """Plain values as JSON.

    `JSONEncoder.encode` makes its inner encoder anew for each call, which takes
    as long as the encoding itself; so where there is one it is made once.
    """
    encoder = json.JSONEncoder(separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    quote = json.encoder.encode_basestring_ascii
    chunks = make(None, encoder.default, quote, None, ":", ",", False, False, False)
    return lambda record: "".join(chunks(record, 0))


_text = _make_text()


# What comes of applying what nobody of ours wrote. Not every exception: signal handlers raise
# theirs here, too.
_NONSENSE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError, SemaphoreClosed),
)


class Damaged(Exception):
    """Inside only: what was read makes no sense; under the lock that means corruption."""


class Journal(LockedFile):
    """The file of one semaphore, as this process has read it."""

    __slots__ = ("_end", "_epoch", "_head", "_sequence", "_start", "sound", "state")

    def __init__(self, folder: OpenFolder, file: str, life: int | None) -> None:
        self.state: State | None = None  # as last read; None if there was none
        self.sound = False  # whether it is what the file says up to `_sequence`
        self._sequence = self._epoch = self._start = self._end = 0
        # The roots as last read or written, and nobody at the door.
        self._head = _NO_ROOTS + NO_KNOCKS
        super().__init__(folder, file, life)

    def close(self) -> None:
        """Let go of the file, and of all locks on it."""
        self.sound = False
        super().close()

    # ---------------------------------------------------------------- reading

    def is_current(self) -> bool:
        """Whether nobody wrote anything since this process read or wrote it.

        Nobody knocks then either, and the file was not deleted.
        """
        fd = self.fd
        return self.sound and pread(fd, _HEAD, 0) == self._head and fstat(fd).st_nlink > 0

    def catch_up(self) -> list[Event] | None:
        """Apply what others wrote: what happened, or None if that can't be told.

        Without the lock it may find less than there is, or raise Damaged.
        """
        try:
            roots = pread(self.fd, 2 * _ROOT_SIZE, 0)
        except OSError as error:
            raise trouble(error, self.path) from error
        if self.sound and self._head.startswith(roots):
            return []
        root = self._newest(roots)
        if root is None:
            self.state = None
            return None
        sequence, epoch, start, end = root
        events: list[Event] | None
        try:
            if (
                self.state is None
                or not self.sound
                or epoch != self._epoch
                or sequence <= self._sequence  # the last root was spoilt, and what it told with it
                or start != self._start
                or end < self._end
            ):
                self.sound = False
                snapshot, *records = self._read(start, end, epoch)
                check_snapshot(snapshot)
                state = State.restore(snapshot)
                events = None
            else:
                records = self._read(self._end, end, epoch)
                state = self.state
                events = []
            self.sound = False  # until all is applied
            for record in records:
                check_record(record)
                happened = state.apply(record)
                if events is not None:
                    events += happened
        except _NONSENSE as error:
            # The sums are right, and the contents are not what a process of ours writes.
            raise Damaged(f"it makes no sense: {type(error).__name__}: {error}") from error
        self._sequence, self._epoch, self._start, self._end = sequence, epoch, start, end
        self._head = roots + NO_KNOCKS
        self.state = state
        self.sound = True
        return events

    def _newest(self, roots: bytes) -> tuple[int, int, int, int] | None:
        """The root that counts; None in a file that was never written to.

        Raises:
            BackendError: it was written by a newer release.
            Damaged: there should be one.
        """
        best: tuple[int, int, int, int] | None = None
        for at in (0, _ROOT_SIZE):
            root = roots[at : at + _ROOT_SIZE]
            if len(root) < _ROOT_SIZE or root[:8] != _MAGIC:
                continue
            _, version, rules, sequence, epoch, start, end = _ROOT.unpack_from(root)
            (checksum,) = _SUM.unpack_from(root, _ROOT_SIZE - _SUM.size)
            if checksum != crc32(root[: -_SUM.size]):
                continue
            if (version, rules) > (VERSION, RULES):
                raise BackendError(
                    f"{self.path}: a newer release of slotwise uses it (format {version}.{rules},"
                    f" this one has {VERSION}.{RULES}): install that here too, or set SLOTWISE_DIR"
                )
            if not (_FIRST <= start <= end < _MOST and sequence < _MOST and epoch < _MOST):
                raise Damaged("its root makes no sense")
            if best is None or sequence > best[0]:
                best = sequence, epoch, start, end
        # The very first root is the second of the two. Without a trace of the other,
        # whoever made the file did not get beyond that, and nothing has happened yet.
        if best is None and roots[:_ROOT_SIZE].strip(b"\0"):
            raise Damaged("it has no valid root")
        return best

    def _read(self, start: int, end: int, epoch: int) -> list[Any]:
        """The records between two places, if they are of this epoch."""
        try:
            size = fstat(self.fd).st_size
            if end > size:  # looked at before, as room for all of it is taken to read it
                raise Damaged(f"it ends at {size}, not at {end}")
            raw = pread(self.fd, end - start, start)
        except OSError as error:
            raise trouble(error, self.path) from error
        if len(raw) != end - start:
            raise Damaged(f"it ends at {start + len(raw)}, not at {end}")
        records = []
        at = 0
        while at < len(raw):
            if len(raw) - at < _FRAME.size:
                raise Damaged(f"half a record at {start + at}")
            length, checksum = _FRAME.unpack_from(raw, at)
            body = raw[at + _FRAME.size : at + _FRAME.size + length]
            if len(body) != length or crc32(body, epoch) != checksum:
                raise Damaged(f"a wrong checksum at {start + at}")
            records.append(json.loads(body))
            at += _FRAME.size + length
        return records

    # ---------------------------------------------------------------- writing
    # All under the lock, with all that others wrote applied.

    def create(self, state: State) -> None:
        """Give a new file its first state."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, 0, _RESERVED)
            else:
                pwrite(self.fd, bytes(_RESERVED), 0)
        except OSError as error:
            raise trouble(error, self.path) from error
        self._sequence = self._epoch = 0
        self._start = self._end = _FIRST
        self._head = _NO_ROOTS + NO_KNOCKS
        self._save(state, _FIRST)
        self.state = state
        self.sound = True

    def write(self, record: Record) -> list[Event]:
        """Make a change: in the state, and in the file.

        If it raises, the file is as it was; and if the state may not be, it is
        read again before its next use.
        """
        state = self.state
        assert state is not None
        events = state.apply(record)
        self.sound = False  # until the file has it
        start = self._start
        end = self._store(_text(record), self._end, self._epoch, start)
        self.sound = True
        if end - start > _LONG and self._is_long(state):
            self._compact(state)
        return events

    def _is_long(self, state: State) -> bool:
        # About 150 bytes for each holder and waiter: a guess will do.
        return self._end - self._start > _LONG + 300 * (len(state.holders) + len(state.waiting))

    def _compact(self, state: State) -> None:
        """Begin anew with a snapshot, in front of what is in use now if it fits there."""
        try:
            self._save(state, self._end)
            if self._start == _FIRST and fstat(self.fd).st_size > 4 * max(self._end, _RESERVED):
                os.ftruncate(self.fd, max(self._end, _RESERVED))
        except (BackendError, OSError):
            pass  # the disk is full; the records will do for another while

    def _save(self, state: State, behind: int) -> None:
        """Store all of it, in front of what is in use now if it fits there."""
        snapshot = _text(state.snapshot())
        fits = _FIRST + _FRAME.size + len(snapshot) <= self._start
        at = _FIRST if fits else behind
        self._store(snapshot, at, self._epoch + 1, at)

    def _store(self, text: str, at: int, epoch: int, start: int) -> int:
        """Write a record and then the root that makes it count: where it ends."""
        body = text.encode()
        # The epoch is in the checksum: what is left of an earlier one is never taken for a record.
        framed = _FRAME.pack(len(body), crc32(body, epoch)) + body
        end = at + len(framed)
        sequence = self._sequence + 1
        root = _ROOT.pack(_MAGIC, VERSION, RULES, sequence, epoch, start, end)
        root += _SUM.pack(crc32(root))
        odd = sequence & 1
        try:
            if pwrite(self.fd, framed, at) != len(framed):
                self._write_rest(framed, at)
            pwrite(self.fd, root, _ROOT_SIZE if odd else 0)
        except OSError as error:
            raise trouble(error, self.path) from error
        head = self._head
        self._head = head[:_ROOT_SIZE] + root + NO_KNOCKS if odd else root + head[_ROOT_SIZE:]
        self._sequence = sequence
        self._epoch = epoch
        self._start = start
        self._end = end
        return end

    def _write_rest(self, data: bytes, at: int) -> None:
        """The disk is nearly full, or a limit near: this raises, and tells which."""
        while data:
            written = pwrite(self.fd, data, at)
            data, at = data[written:], at + written


def read_name(folder: OpenFolder, file: str) -> str | None:
    """The name of the semaphore in a file that this process does not have open."""
    journal = Journal(folder, file, None)
    try:
        if not journal.open(create=False):
            return None
        journal.catch_up()
        return None if journal.state is None else journal.state.name
    except (Damaged, BackendError):
        return None
    finally:
        journal.close()
