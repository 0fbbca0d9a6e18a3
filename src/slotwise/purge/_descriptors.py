"""Keep directories open: opened once, closed when descriptors run out, reopened.

A node's descriptor is what its children are opened and removed through. When there
are too many, the least recently used one that nobody works with is closed; it is
found again through a child's ``..`` or from an open ancestor downwards, and has to
be the same directory, by device and inode.
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

    def pin(self, node: DirectoryNode, child: DirectoryNode | None = None) -> int:
        """Return the node's descriptor, which stays open until `unpin`.

        Raises:
            OSError: it was closed and can't be found again where it was.
        """
        if self._pin_open(node):
            return node.fd
        fd: int = self.attempt(self._find_again, node, child)
        with self._lock:
            closing = []
            if node.fd == CLOSED:
                node.fd = fd
                self.open += 1
                closing = self._too_many()
            else:  # another thread was faster
                closing = [fd]
                if not node.pins:
                    del self._unused[node]
            node.pins += 1
            fd = node.fd
        _close(closing)
        return fd

    def _pin_open(self, node: DirectoryNode) -> bool:
        """Pin the node if its descriptor is open."""
        with self._lock:
            if node.fd == CLOSED:
                return False
            if not node.pins:
                del self._unused[node]
            node.pins += 1
            return True

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

    def _find_again(self, node: DirectoryNode, child: DirectoryNode | None) -> int:
        if child is not None and self._pin_open(child):
            try:
                # O_NOFOLLOW says nothing about "..", which is never a symlink.
                fd = os.open("..", OPEN_DIRECTORY, dir_fd=child.fd)
            finally:
                self.unpin(child)
            if identity_of(fd) == node.identity:
                return fd
            os.close(fd)
        return self._from_above(node)

    def _from_above(self, node: DirectoryNode) -> int:
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
