"""The bookkeeping of the walk: directories until everything below is done, and the counts."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from slotwise.purge._identity import Identity

CLOSED = -1


@dataclass(slots=True, eq=False)
class DirectoryNode:
    """A directory that was opened, and what is left to do below it."""

    # pending  the directories below that are not finished, and 1 for its own listing
    # kept     something is or may be left in it, so it is not empty
    # pins     how many threads use its descriptor right now
    parent: DirectoryNode | None
    name: str
    fd: int
    identity: Identity
    depth: int
    pending: int = 1
    kept: bool = False
    pins: int = 1
    batches: int = 0

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


@dataclass(slots=True, eq=False)
class Tally:
    """One worker's share of the report's counts."""

    files_scanned: int = 0
    files_to_purge: int = 0
    files_purged: int = 0
    dirs_scanned: int = 0
    dirs_deleted: int = 0
    symlinks: int = 0
    special_files: int = 0
    bytes_freed: int = 0
    seconds_per_operation: float | None = None
    """In the latest batch or directory, until the supervisor has read it."""

    @property
    def operations(self) -> int:
        return self.files_scanned + self.files_purged + 2 * self.dirs_scanned + self.dirs_deleted

    def add(self, other: Tally) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_COUNTS = [name for name in Tally.__dataclass_fields__ if name != "seconds_per_operation"]
