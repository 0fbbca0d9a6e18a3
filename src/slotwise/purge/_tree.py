"""The nodes of the walk: directories, from their discovery until everything below is done."""

from __future__ import annotations

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
