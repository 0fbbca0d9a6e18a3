"""Audit: a line for each deletion, in the file before the deletion is done.

One ``write`` per line, straight to the kernel: what was said survives the process. The
file may be a pipe, and one that this process has open already, such as /dev/stdout.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable

from slotwise.purge._errors import AuditFailed, AuditRefused

log = logging.getLogger("slotwise.purge")

_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_LOOK_FOR_READER = 0.05  # seconds between two looks


def descriptor_of(path: str) -> int | None:
    """The descriptor of this process that a path like /dev/fd/3 names."""
    number = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", path, re.ASCII)
    return int(number[1]) if number else _STREAMS.get(path)


class Audit:
    """Appends JSON lines; safe for many threads."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._lock = threading.Lock()
        self._torn = False

    @classmethod
    def open(cls, path: str, give_up: Callable[[], bool] = lambda: False) -> Audit | None:
        """Open a file or a pipe; None if a pipe has no reader when it is time to ``give_up``.

        Raises:
            AuditRefused: it can't be opened.
        """
        told = False
        while not give_up():
            try:
                return cls(_open(path))
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise AuditRefused(f"the audit file can't be opened: {error}") from error
            if not told:
                log.warning("waiting for somebody to read the audit from the pipe %s", path)
                told = True
            time.sleep(_LOOK_FOR_READER)
        return None

    def before(self, op: str, path: str, size: int) -> None:
        """Say what is about to be deleted.

        Raises:
            AuditFailed: it could not be said, so it must not be done.
        """
        self._write({"time": time.time(), "op": op, "path": path, "size": size})

    def failed(self, op: str, path: str, size: int, error: str) -> None:
        """Take back what `before` said."""
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
        # ASCII only: names that are no UTF-8 come back from json.loads as Python had them.
        data = json.dumps(line).encode("ascii") + b"\n"
        with self._lock:
            if self._torn:
                data = b"\n" + data
            written = 0
            try:
                while written < len(data):  # one call, unless the disk gets full in the middle
                    written += os.write(self._fd, data[written:])
            except OSError as error:
                self._torn = self._torn or written > 0
                raise AuditFailed(
                    error.errno, f"no audit line could be written: {error.strerror}"
                ) from error
            self._torn = False


def _open(path: str) -> int:
    descriptor = descriptor_of(path)
    if descriptor is not None:
        # The same open file: another one of its own would write over what is in it.
        return os.dup(descriptor)
    # Without O_NONBLOCK a pipe that nobody reads would hold us here, out of reach of signals.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    opened = os.open(path, flags, 0o640)
    os.set_blocking(opened, True)
    return opened
