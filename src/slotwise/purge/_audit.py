"""Audit: a line for each deletion, in the file before the deletion is done.

One ``write`` per line, straight to the kernel: what was said survives the process.
"""

from __future__ import annotations

import json
import os
import threading
import time

from slotwise.purge._errors import AuditFailed, AuditRefused


class Audit:
    """Appends JSON lines; safe for many threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._torn = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(path, flags, 0o640)
        except OSError as error:
            raise AuditRefused(f"the audit file can't be opened: {error}") from error

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
