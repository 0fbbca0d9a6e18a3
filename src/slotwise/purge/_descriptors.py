"""Keep directories open: opened once, closed when descriptors run out, reopened.

A node's descriptor is what its children are opened and removed through. When there
are too many, the least recently used one that nobody works with is closed; it is
found again from an open ancestor downwards, and has to be the same directory, by device and inode.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from slotwise.purge._identity import identity_of
from slotwise.purge._plan import OPEN_DIRECTORY
from slotwise.purge._tree import CLOSED, DirectoryNode

# When all descriptors are in use, other workers free theirs within a few operations. After two
# seconds, it must be something outside the purge that holds them.
_PAUSE = 0.01
_PAUSES = 200


class Descriptors:
    """The descriptors of all nodes, about ``most`` at most."""

    def __init__(self, most: int) -> None:
        self.most = max(4, most)
        self.open = 0
        self._lock = threading.Lock()
        self._unused: OrderedDict[DirectoryNode, None] = OrderedDict()  # least recently used first

    def adopted(self) -> None:
        """Count a node that was created with a descriptor and one pin."""
        with self._lock:
            self.open += 1
            closing = self._too_many()
        _close(closing)

    def pin(self, node: DirectoryNode) -> int:
        """Return the node's descriptor, which stays open until `unpin`.

        Raises:
            OSError: it was closed and can't be found again where it was.
        """
        closing: list[int] = []
        fd = CLOSED
        while True:
            with self._lock:
                if node.fd == CLOSED and fd != CLOSED:
                    node.fd = fd
                    self.open += 1
                    node.pins += 1
                    closing = self._too_many()
                    break
                if node.fd != CLOSED:
                    if not node.pins:
                        del self._unused[node]
                    node.pins += 1
                    if fd != CLOSED:  # another thread was faster
                        closing = [fd]
                    break
            fd = self.attempt(self._find_again, node)
        _close(closing)
        return node.fd

    def unpin(self, node: DirectoryNode) -> None:
        with self._lock:
            node.pins -= 1
            if not node.pins and node.fd != CLOSED:
                self._unused[node] = None
                closing = self._too_many()
            else:
                closing = []
        _close(closing)

    def close(self, node: DirectoryNode) -> None:
        """Close the descriptor of a finished node."""
        with self._lock:
            self._unused.pop(node, None)
            if node.fd == CLOSED:
                return
            fd, node.fd = node.fd, CLOSED
            self.open -= 1
        os.close(fd)

    def close_all(self) -> None:
        with self._lock:
            closing = [self._forget(node) for node in list(self._unused)]
        _close(closing)

    # ------------------------------------------------------------- none left

    def attempt(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call something that needs a new descriptor; make room and retry if there is none."""
        pauses = _PAUSES
        while True:
            try:
                return call(*args, **more)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if self._give_room():
                    continue
                if not pauses:
                    raise
                pauses -= 1
            time.sleep(_PAUSE)

    def _give_room(self) -> bool:
        """Keep fewer open from now on; return False if there is nothing to close."""
        with self._lock:
            self.most = max(4, self.open - 4)
            closing = self._too_many()
        _close(closing)
        return bool(closing)

    def _too_many(self) -> list[int]:
        closing = []
        while self.open > self.most and self._unused:
            closing.append(self._forget(next(iter(self._unused))))
        return closing

    def _forget(self, node: DirectoryNode) -> int:
        del self._unused[node]
        fd, node.fd = node.fd, CLOSED
        self.open -= 1
        return fd

    # ------------------------------------------------------------ found again

    def _find_again(self, node: DirectoryNode) -> int:
        chain = [node]
        while True:
            ancestor = chain[-1].parent
            assert ancestor is not None  # the root's descriptor is pinned all the time
            with self._lock:
                if ancestor.fd != CLOSED:
                    fd = os.dup(ancestor.fd)
                    break
            chain.append(ancestor)
        for step in reversed(chain):
            try:
                deeper = os.open(step.name, OPEN_DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = deeper
            if identity_of(fd) != step.identity:
                os.close(fd)
                raise OSError(errno.ESTALE, "the directory was replaced while it was purged")
        return fd


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


# If the root is renamed between the two questions, both are repeated, up to this many times.
_TRIES = 3
# This many "../" still fit into a path.
_STEPS = 1000
_OPEN_ABOVE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class Containment:
    """The root, wherever it has been moved to."""

    def __init__(self, root: DirectoryNode, descriptors: Descriptors) -> None:
        self._root = root
        self._descriptors = descriptors
        self._root_link = f"/proc/self/fd/{root.fd}"

    def contains(self, node: DirectoryNode) -> bool:
        """Whether ``node``, which is open, lies below the root."""
        for _ in range(_TRIES):
            try:
                root = os.readlink(self._root_link)  # noqa: PTH115
                path = os.readlink(f"/proc/self/fd/{node.fd}")  # noqa: PTH115
            except OSError as error:
                # Too deep for a path, or no /proc: climb instead.
                if error.errno in (errno.ENAMETOOLONG, errno.ENOENT):
                    return self._is_above(node)
                return False
            if path.startswith(root if root == "/" else root + "/"):
                return True
        return False

    def _is_above(self, node: DirectoryNode) -> bool:
        """Climb from ``node`` by its depth, and return whether that is the root."""
        fd, left = node.fd, node.depth
        try:
            while left:
                steps = min(left, _STEPS)
                above = self._descriptors.attempt(os.open, "../" * steps, _OPEN_ABOVE, dir_fd=fd)
                if fd != node.fd:
                    os.close(fd)
                fd, left = above, left - steps
            return identity_of(fd) == self._root.identity
        except OSError:
            return False
        finally:
            if fd != node.fd:
                os.close(fd)
