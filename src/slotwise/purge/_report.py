"""What a purge reports: its counts and exit code, its errors, and why it didn't start."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from slotwise.errors import SlotwiseError

SAMPLES_KEPT = 20

# Reasons to end early that were asked for, and are not errors.
ASKED_FOR = ("max_files_to_delete", "max_empty_dirs_to_delete", "deadline")
SIGNALS = {"SIGINT": 130, "SIGTERM": 143}


@dataclass(slots=True)
class PurgeReport:
    """The summary of a purge; in a dry run, of what a real run would do."""

    root: str = ""
    files_scanned: int = 0
    files_to_purge: int = 0
    files_purged: int = 0
    dirs_scanned: int = 0
    empty_dirs_deleted: int = 0
    symlinks_skipped: int = 0
    special_files_skipped: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    error_samples: list[dict[str, str]] = field(default_factory=list)
    bytes_freed: int = 0
    duration_seconds: float = 0.0
    files_per_second: float = 0.0
    peak_memory_mb: float = 0.0
    dry_run: bool = False
    stopped_by: str | None = None
    """None if everything was visited; else a cap, "deadline", a signal, "cancelled", or what
    failed."""

    @property
    def failures(self) -> int:
        return sum(self.errors.values())

    @property
    def exit_code(self) -> int:
        """0 done, 1 done with errors, 2 not done, 130 or 143 interrupted."""
        if self.stopped_by in SIGNALS:
            return SIGNALS[self.stopped_by]
        if self.stopped_by is not None and self.stopped_by not in ASKED_FOR:
            return 2
        return 1 if self.errors else 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class RootRefused(SlotwiseError, ValueError):
    """The path must not be purged: a symlink, not a directory, or too dangerous."""


class AuditRefused(SlotwiseError, ValueError):
    """The audit file can't be used: it lies below the root, or can't be opened."""


class AuditFailed(SlotwiseError, OSError):
    """A line could not be written to the audit file, so the deletion was not done."""


class AuditAbandoned(AuditFailed):
    """The run was stopped while it waited for a pipe that nobody reads; nothing was deleted."""


log = logging.getLogger("slotwise.purge")


def kind_of(error: OSError) -> str:
    """Return the symbol of an error, such as ``EACCES``."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


class Failures:
    """The errors of one run; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._samples: list[dict[str, str]] = []

    def add(self, op: str, path: Callable[[], str], error: OSError) -> None:
        """Count an error; ``path`` is called only if it becomes a sample."""
        kind = kind_of(error)
        words = error.strerror or str(error)
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if len(self._samples) >= SAMPLES_KEPT:
                return
            where = path()
            self._samples.append({"op": op, "path": where, "error": words, "kind": kind})
        log.warning("%s %s: %s", op, printable(where), words)

    def read(self) -> tuple[dict[str, int], list[dict[str, str]]]:
        with self._lock:
            return dict(self._counts), list(self._samples)


def printable(text: str) -> str:
    """Return a path that can be shown: escape what is not UTF-8 or would move the cursor."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
