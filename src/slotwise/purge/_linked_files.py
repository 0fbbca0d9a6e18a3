"""Tell which of the names of a file is the last: only then are its bytes freed."""

from __future__ import annotations

import os
import threading

_MOST_LINKED = 100_000  # files with several names that are counted at a time: some 20 MB


class LinkedFiles:
    """Tells when all names of a file are removed, or would be in a dry run.

    What a worker has read of a file doesn't tell that: a dry run removes nothing, and others may
    have removed a name since. Of very many files that also have names elsewhere, not all are kept
    in mind; those beyond free nothing, unless it was read that the name is the only one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names_left: dict[tuple[int, int], int] = {}

    def is_last_name(self, found: os.stat_result) -> bool:
        if found.st_nlink == 1 and not self._names_left:
            return True
        file = found.st_dev, found.st_ino
        with self._lock:
            left = min(self._names_left.pop(file, found.st_nlink), found.st_nlink) - 1
            if left > 0 and len(self._names_left) < _MOST_LINKED:
                self._names_left[file] = left
        return left == 0
