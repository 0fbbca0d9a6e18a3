"""The bookkeeping of the walk: directories until everything below is done, and the counts."""

from __future__ import annotations

import os
import threading

from slotwise.purge._identity import Identity

CLOSED = -1


class DirectoryNode:
    """A directory that was opened, and what is left to do below it."""

    # pending  the directories below that are not finished, and 1 for its own listing
    # kept     something is or may be left in it, so it is not empty
    # pins     how many threads use its descriptor right now
    __slots__ = ("batches", "depth", "fd", "identity", "kept", "name", "parent", "pending", "pins")

    def __init__(
        self, parent: DirectoryNode | None, name: str, fd: int, identity: Identity, depth: int
    ) -> None:
        self.parent = parent
        self.name = name
        self.fd = fd
        self.identity = identity
        self.depth = depth
        self.pending = 1
        self.kept = False
        self.pins = 1
        self.batches = 0

    def path(self) -> str:
        """The path below the root; "" for the root."""
        names = []
        node: DirectoryNode | None = self
        while node is not None and node.parent is not None:
            names.append(node.name)
            node = node.parent
        return "/".join(reversed(names))


class Counts:
    """The counters of the nodes, which several workers change."""

    # Between any two calls:
    #   N1  node.pending = directories below it that are pushed or being visited and not
    #       finished, plus 1 while it is listed itself

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def expect(self, node: DirectoryNode, more: int) -> None:
        with self._lock:
            node.pending += more

    def keep(self, node: DirectoryNode) -> None:
        with self._lock:  # `finish` reads it and writes it back
            node.kept = True

    def finish(self, node: DirectoryNode, *, kept: bool) -> bool:
        """Note that one thing in ``node`` is finished; return whether it was the last."""
        with self._lock:
            node.pending -= 1
            node.kept = node.kept or kept
            return not node.pending


class Tally:
    """One worker's share of the report's counts."""

    __slots__ = (
        "bytes_freed",
        "dirs_deleted",
        "dirs_scanned",
        "files_purged",
        "files_scanned",
        "files_to_purge",
        "seconds_per_operation",
        "special_files",
        "symlinks",
    )

    def __init__(self) -> None:
        self.files_scanned = 0
        self.files_to_purge = 0
        self.files_purged = 0
        self.dirs_scanned = 0
        self.dirs_deleted = 0
        self.symlinks = 0
        self.special_files = 0
        self.bytes_freed = 0
        # Seconds per operation in the latest batch or directory, until the supervisor has read it.
        self.seconds_per_operation: float | None = None

    @property
    def operations(self) -> int:
        return self.files_scanned + self.files_purged + 2 * self.dirs_scanned + self.dirs_deleted

    def add(self, other: Tally) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_COUNTS = [name for name in Tally.__slots__ if name != "seconds_per_operation"]


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
