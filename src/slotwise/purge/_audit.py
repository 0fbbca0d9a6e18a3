"""Write the audit: one line for each deletion, before the deletion is done.

Each line is one ``write``, straight to the kernel, so that it survives the process. The
target may be a pipe, even one that this process already has open, such as /dev/stdout.
Whether something is deleted is decided elsewhere.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slotwise.purge._report import AuditAbandoned, AuditFailed, AuditRefused, kind_of

if TYPE_CHECKING:
    from slotwise.purge._run import Run
    from slotwise.purge._tree import DirectoryNode


log = logging.getLogger("slotwise.purge")

_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_RETRY = 0.05  # seconds between two attempts on a pipe that has no reader, or is full
_TELL_AFTER = 1.0  # seconds for which a pipe is full before that is logged
_GIVE_UP_AFTER = 0.2  # the same before a stopping run gives up: the reader may only be slow


def descriptor_of(path: str) -> int | None:
    """Return the descriptor of this process that a path like /dev/fd/3 names."""
    number = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", path, re.ASCII)
    return int(number[1]) if number else _STREAMS.get(path)


class Audit:
    """Appends JSON lines; safe for many threads.

    Neither a pipe without a reader nor a full one is an error: the run waits, which is
    logged once, until ``is_stopping()``.
    """

    def __init__(self, descriptor: int, path: str, is_stopping: Callable[[], bool]) -> None:
        self._fd = descriptor
        self._path = path
        self._is_stopping = is_stopping
        self._lock = threading.Lock()
        self._torn = False  # a line was begun and not completed
        # A regular file always takes the whole line. Anything else gets at most as much as surely
        # fits when it is writable.
        self._can_be_full = not stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._full_since: float | None = None
        self._told = False

    @classmethod
    def open(cls, path: str, is_stopping: Callable[[], bool] = lambda: False) -> Audit | None:
        """Open a file or a pipe; None if a pipe still has no reader when the run is stopping.

        Raises:
            AuditRefused: it can't be opened, or is neither.
        """
        told = False
        while not is_stopping():
            try:
                return cls(_open(path), path, is_stopping)
            except OSError as error:
                if error.errno != errno.ENXIO or not Path(path).is_fifo():
                    raise AuditRefused(
                        f"the audit file {path} can't be opened: {error.strerror}"
                    ) from error
            if not told:
                # Critical, whatever the log level: nothing is deleted meanwhile.
                log.critical("waiting: no process reads the audit from the pipe %s", path)
                told = True
            time.sleep(_RETRY)
        return None

    def before(self, op: str, path: str, size: int) -> None:
        """Write down what is about to be deleted.

        Raises:
            AuditFailed: it could not be written, so the deletion must not be done.
        """
        self._write({"time": time.time(), "op": op, "path": path, "size": size})

    def failed(self, op: str, path: str, size: int, error: str) -> None:
        """Write that the deletion `before` announced was not done.

        Raises:
            AuditFailed: it could not be written.
        """
        self._write(
            {
                "time": time.time(),
                "op": "failed",
                "path": path,
                "size": size,
                "failed_op": op,
                "error": error,
            }
        )

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, line: dict[str, object]) -> None:
        # ASCII only: json.loads returns names that are not UTF-8 as Python had them.
        data = json.dumps(line).encode("ascii") + b"\n"
        with self._lock:
            if self._torn:
                data = b"\n" + data
            written = 0
            try:
                while written < len(data):  # one call, unless the disk fills up in the middle
                    written += self._write_some(data[written:])
            except OSError as error:
                self._torn = self._torn or written > 0
                if isinstance(error, AuditAbandoned):
                    raise
                raise AuditFailed(
                    error.errno, f"no audit line could be written: {error.strerror}"
                ) from error
            self._torn = False

    def _write_some(self, data: bytes) -> int:
        if not self._can_be_full:
            return os.write(self._fd, data)
        self._wait_until_writable()
        try:
            return os.write(self._fd, data[: select.PIPE_BUF])
        except BlockingIOError:  # another process has filled it
            return 0

    def _wait_until_writable(self) -> None:
        """Wait, but not in ``write``, which signals could not interrupt.

        Raises:
            AuditAbandoned: nothing could be written, and the run is stopping.
        """
        while not self._poll.poll(0):
            now = time.monotonic()
            if self._full_since is None:
                self._full_since = now
            full_for = now - self._full_since
            if full_for >= _GIVE_UP_AFTER and self._is_stopping():
                raise AuditAbandoned(errno.EAGAIN, "no process reads the audit")
            if full_for >= _TELL_AFTER and not self._told:
                self._told = True
                log.critical(
                    "waiting: the audit's pipe %s is full, and no process reads it", self._path
                )
            self._poll.poll(_RETRY * 1000)
        self._full_since = None


def _open(path: str) -> int:
    descriptor = descriptor_of(path)
    if descriptor is not None:
        # Use the same open file: a second one would overwrite what is in it.
        return os.dup(descriptor)
    # Without O_NONBLOCK, a pipe that nobody reads would block here, out of reach of signals.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    opened = os.open(path, flags, 0o640)
    if os.isatty(opened):
        os.close(opened)
        raise AuditRefused(f"the audit file {path} is a terminal, which keeps nothing")
    return opened


@contextmanager
def audited(run: Run, op: str, node: DirectoryNode, name: str, size: int) -> Iterator[None]:
    """Audit the removal of ``name`` from ``node``, which is the block.

    Raises:
        AuditFailed: it could not be written. The run is stopped, and the block is not run.
    """
    audit = run.audit
    if audit is None:
        yield
        return
    path = run.full_path(node, name)
    try:
        audit.before(op, path, size)
    except AuditAbandoned:  # the run is stopping, for a reason of its own
        raise
    except AuditFailed as error:
        run.error("audit", node, name, error)
        run.stop("audit")
        raise
    try:
        yield
    except OSError as error:
        try:
            audit.failed(op, path, size, kind_of(error))
        except AuditFailed:
            run.stop("audit")
        raise
