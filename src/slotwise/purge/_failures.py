"""Failures: the errors of a purge, counted by kind, with samples of the first ones."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

from slotwise.purge._plan import printable
from slotwise.purge._report import SAMPLES_KEPT

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
