"""Check that a directory that was just opened still lies below the root.

The kernel is asked for the paths of both, each time: the root itself may have been
renamed, and another directory may have taken its name.
"""

from __future__ import annotations

import errno
import os

from slotwise.purge._descriptors import Descriptors
from slotwise.purge._identity import identity_of
from slotwise.purge._tree import DirectoryNode

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
