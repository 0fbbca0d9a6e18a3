"""FileJournal: a journal in one file: a snapshot, the records since, and a root.

    0     root          where the snapshot starts and the records end, with a checksum; twice
    128   lock queue    see `_locked_file`
    384   ...           a snapshot and, right after it, the records of later changes

A change appends a record, or writes a new snapshot where nothing is in use, and then
overwrites the older of the two roots. That last write, of 64 bytes, commits the change: a
process that is killed before it leaves the old state, and after it the new one. A process
that has read up to some root only has to read what came since.

Changes need the file's lock, and so does reading what others have changed.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from fcntl import LOCK_UN, lockf
from functools import partial
from os import fstat, pread, pwrite
from typing import TYPE_CHECKING, Any
from zlib import crc32

from slotwise._ledger import NEVER
from slotwise._wait import clock
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes import _messages
from slotwise.processes._journal import Damaged, Journal, Record
from slotwise.processes._locked_file import EMPTY_QUEUE, QUEUE_OFFSET, LockedFile
from slotwise.processes._state import State

if TYPE_CHECKING:
    from slotwise.processes._process import LocalProcess

_encode = json.JSONEncoder(separators=(",", ":")).encode

_MAGIC = b"slotwise"
VERSION = 2
RULES = State.RULES

# magic, version, rules, sequence number, epoch, where the snapshot starts, where the records end
_ROOT = struct.Struct("<8sHHQQQQ16x")
_ROOT_SIZE = 64  # the checksum is in its last bytes
_CHECKSUM = struct.Struct("<I")  # the same in every version: it makes newer roots recognizable
_NO_ROOTS = bytes(2 * _ROOT_SIZE)

_HEAD_SIZE = QUEUE_OFFSET + len(EMPTY_QUEUE)

_FRAME = struct.Struct("<II")  # length and checksum, before each record

# Space for every change of a small semaphore is reserved when its file is created, so that
# slots can still be released when the disk is full.
_RESERVED = 32 * 1024
# A new snapshot is written when the records are longer than this, and than twice the last one.
_COMPACT_AFTER = 8 * 1024

_NOT_OPEN = bool  # does nothing when it is called


class FileJournal(Journal):
    """The contents of one limit's file, as far as this process has read them."""

    def __init__(self, process: LocalProcess, file: LockedFile, name: str, key: str) -> None:
        self.process = process
        self.owner, self.pid, self.boot = process.owner, process.pid, process.boot
        self.file = file
        self.place = file.path
        self.name = name
        self.key = key  # by which processes tell each other to read it
        self.next_number = process.next_number
        wakeups = process.wakeups
        self.listen, self.watch = wakeups.start, wakeups.watch
        self.notify = partial(wakeups.notify, key)
        self.is_new = True
        self.is_behind = True
        # In C, so that no signal handler can raise in it: the file would stay locked.
        self.end: Callable[[], object] = _NOT_OPEN
        self._in_sync = False  # whether this process knows all up to `_sequence`
        self._sequence = self._epoch = self._start = self._end = 0
        self._written_in = VERSION, RULES
        self._snapshot_size = 0  # of the last one, in bytes
        # The roots as last read or written, and an empty lock queue.
        self._head = _NO_ROOTS + EMPTY_QUEUE

    def times(self) -> tuple[float, int]:
        return clock.now(), time.time_ns() // 1000

    # --------------------------------------------------------------- the lock

    def begin(self, since: float, retries: bool, *, create: bool) -> bool:
        file, now = self.file, time.monotonic() if retries else since
        try:
            if file.fd < 0:
                self._open(create=create)
            elif retries and not file.is_in_place():
                self._close()  # then it doesn't matter who has its lock
                return False
            if retries and file.is_anothers_turn(since, now):
                return False  # don't even try: it would only be in the way
            if not file.try_lock():
                # At once: on a busy machine, a process that seldom runs would be overtaken
                # before its second try.
                file.announce(since, now)
                return False
            # If the head is as it was, nobody is queueing for the lock either.
            self.is_behind = not self._in_sync or pread(file.fd, _HEAD_SIZE, 0) != self._head
            if self.is_behind and file.is_anothers_turn(since, now):
                return False
            if not file.is_in_place():
                self._close()
                return False
            if retries:
                file.leave(since)
        except BackendError:
            raise
        except OSError as error:
            raise _messages.os_error(error, self.place) from error
        return True

    def _open(self, *, create: bool) -> None:
        self.is_new, self._in_sync = True, False
        directory = self.file.directory
        try:
            if not create and not directory.path_exists():
                raise FileNotFoundError
            directory.reopen()
            self.process.opened(self.key)
            self.file.open(create=create)
        except FileNotFoundError:
            if create:
                raise
            raise self.unknown() from None
        self.end = partial(lockf, self.file.fd, LOCK_UN, 1)

    def give_up(self, since: float) -> int | None:
        if self.file.fd < 0:
            return None
        self.file.leave(since)
        return self.file.lock_holder()

    def close(self) -> None:
        self.process.limits.pop(self.key, None)
        self._close()

    def _close(self) -> None:
        self._in_sync = False
        self.end = _NOT_OPEN
        self.file.close()

    def unknown(self) -> UnknownSemaphore:
        return _messages.unknown(self.file.directory.path, self.name)

    def remove(self) -> None:
        try:
            self.file.directory.unlink(self.file.filename)
        except OSError as error:
            raise _messages.os_error(error, self.place) from error

    def lock_holder(self) -> int | None:
        """Return the pid of the process that has the file's lock; None if nobody can tell."""
        try:
            if self.file.fd < 0:
                self._open(create=False)
        except (OSError, UnknownSemaphore):  # whoever reads it is told
            return None
        return self.file.lock_holder()

    def touch(self) -> None:
        """Update the time of the file, for programs that delete old temporary files."""
        if self.file.fd >= 0:
            os.utime(self.file.fd)

    def age(self) -> float:
        """Return the seconds since anybody changed it; `NEVER` if it isn't open."""
        return NEVER if self.file.fd < 0 else time.time() - fstat(self.file.fd).st_mtime

    # -------------------------------------------------------- other processes

    def is_alive(self, owner: str) -> bool:
        try:
            return self.file.is_alive(int(owner[1:], 16))
        except OSError as error:
            raise _messages.os_error(error, self.place) from error

    def announce(self) -> None:
        # If it replaces a file that was deleted, the holders of that have to notice.
        for owner in self.process.wakeups.other_owners():
            self.notify(owner)
        self.process.sweep(own=False)

    # ---------------------------------------------------------------- reading

    def forget(self) -> None:
        self._in_sync = False

    def read(self) -> tuple[Any, list[Record]] | None:
        try:
            roots = pread(self.file.fd, 2 * _ROOT_SIZE, 0)
            # Fewer bytes: somebody has truncated it, and nothing may be added to what is left.
            if self._in_sync and self._head[: 2 * _ROOT_SIZE] == roots:
                return None, []
            root = self._newest(roots)
            if root is None:
                self._in_sync = False
                return None
            sequence, epoch, start, end, self._written_in = root
            anew = (
                not self._in_sync
                or epoch != self._epoch
                or sequence <= self._sequence  # the last root was damaged, its change is gone
                or start != self._start
                or end < self._end
            )
            records, size = self._read(start if anew else self._end, end, epoch)
        except BackendError:
            raise
        except OSError as error:
            raise _messages.os_error(error, self.place) from error
        except (ValueError, IndexError) as error:
            raise self.damaged(error) from error
        self._sequence, self._epoch, self._start, self._end = sequence, epoch, start, end
        self._head = roots + EMPTY_QUEUE
        self._in_sync = True
        if not anew:
            return None, records
        self._snapshot_size = size
        return records[0], records[1:]

    def _newest(self, roots: bytes) -> tuple[int, int, int, int, tuple[int, int]] | None:
        """Return the latest valid root; None if nothing was ever committed to the file.

        Raises:
            BackendError: a newer release wrote it.
            ValueError: there are only invalid ones.
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
                raise _messages.path_error(
                    self.place,
                    f"a newer release of slotwise uses it (format {version}.{rules}, this release"
                    f" has {VERSION}.{RULES}): upgrade slotwise here too, or set SLOTWISE_DIR",
                )
            if best is None or sequence > best[0]:
                best = sequence, epoch, start, end, (version, rules)
        # The very first root goes into the second place. If the first place is empty, the process
        # that created the file didn't get beyond that, and nothing was committed.
        if best is None and roots[:_ROOT_SIZE].strip(b"\0"):
            raise ValueError("no valid root")
        return best

    def damaged(self, error: Exception) -> BackendError:
        remedy, (version, rules) = "remove it when nobody uses the semaphore", self._written_in
        if (version, rules) < (VERSION, RULES):
            return _messages.path_error(
                self.place,
                f"an older release of slotwise wrote it (format {version}.{rules}, this release"
                f" has {VERSION}.{RULES}): {remedy}",
            )
        what = f"its contents are damaged ({error}): {remedy}"
        return Damaged(*_messages.path_error(self.place, what).args)

    def _read(self, start: int, end: int, epoch: int) -> tuple[list[Any], int]:
        """Return the records between two offsets, of this epoch, and the length of the first."""
        raw = pread(self.file.fd, end - start, start)
        if len(raw) != end - start:
            raise ValueError(f"truncated at offset {start + len(raw)} of {end}")
        records = []
        at = first = 0
        while at < len(raw):
            length, checksum = _FRAME.unpack(raw[at : at + _FRAME.size].ljust(_FRAME.size, b"\0"))
            body = raw[at + _FRAME.size : at + _FRAME.size + length]
            if len(body) != length or crc32(body, epoch) != checksum:
                raise ValueError(f"wrong checksum at offset {start + at}")
            records.append(json.loads(body))
            first = first or length
            at += _FRAME.size + length
        return records, first

    # ---------------------------------------------------------------- writing

    def create(self, snapshot: Any) -> None:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.file.fd, 0, _RESERVED)
            else:
                pwrite(self.file.fd, bytes(_RESERVED), 0)
        except OSError as error:
            raise _messages.os_error(error, self.place) from error
        self._sequence = 0
        # Not that of an earlier one: the file may have been emptied, and others have read that.
        self._epoch = int.from_bytes(os.urandom(6), "little")
        self._start = self._end = _HEAD_SIZE
        self._head = _NO_ROOTS + EMPTY_QUEUE
        self._write_snapshot(snapshot)
        self._in_sync = True

    def append(self, record: Record, snapshot: Callable[[], Any]) -> None:
        self._commit(record, self._end, self._epoch, self._start)
        if self._end - self._start > _COMPACT_AFTER + 3 * self._snapshot_size:
            try:
                self._write_snapshot(snapshot())
                wanted = max(self._end, _RESERVED)
                if self._start == _HEAD_SIZE and fstat(self.file.fd).st_size > 4 * wanted:
                    os.ftruncate(self.file.fd, wanted)
            except OSError:
                pass  # the disk is full; the old snapshot and its records are kept for now

    def _write_snapshot(self, snapshot: Any) -> None:
        """Write it in front of what is in use if it fits there, otherwise after it."""
        size = len(_encode(snapshot).encode())
        at = _HEAD_SIZE if _HEAD_SIZE + _FRAME.size + size <= self._start else self._end
        self._commit(snapshot, at, self._epoch + 1, at)
        self._snapshot_size = size

    def _commit(self, written: Any, at: int, epoch: int, start: int) -> None:
        """Write a record or a snapshot, and then the root that commits it."""
        body = _encode(written).encode()
        # The epoch is in the checksum, so that remains of an earlier one never pass for a record.
        framed = _FRAME.pack(len(body), crc32(body, epoch)) + body
        end = at + len(framed)
        sequence = self._sequence + 1
        root = _ROOT.pack(_MAGIC, VERSION, RULES, sequence, epoch, start, end)
        root += _CHECKSUM.pack(crc32(root))
        head, fd = self._head, self.file.fd
        try:
            while framed:  # a short write means that the next one raises: the disk is full
                written_bytes = pwrite(fd, framed, end - len(framed))
                framed = framed[written_bytes:]
            pwrite(fd, root, _ROOT_SIZE if sequence & 1 else 0)
        except OSError as error:
            raise _messages.os_error(error, self.place) from error
        roots = (head[:_ROOT_SIZE], root) if sequence & 1 else (root, head[_ROOT_SIZE:128])
        self._head = b"".join((*roots, EMPTY_QUEUE))
        self._sequence, self._epoch, self._start, self._end = sequence, epoch, start, end


def read_name(process: LocalProcess, filename: str) -> str | None:
    """Return the name of the limit in a file that this process doesn't have open."""
    file = LockedFile(process.directory, filename)
    try:
        file.open(create=False)
        found = FileJournal(process, file, "", "").read()
        name = None if found is None else found[0]["name"]
        return name if isinstance(name, str) else None
    except (OSError, KeyError, TypeError):  # or a BackendError, which is an OSError
        return None
    finally:
        file.close()
