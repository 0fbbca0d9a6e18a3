"""Predict for a dry run whether the kernel would let this user remove a name, and what that frees.

The checks are in the kernel's order: is the directory frozen, may this user write to it, is
it sticky with both directory and file owned by somebody else, is the file itself immutable
or append-only. What a security module or a network file server decides can't be predicted.
"""

from __future__ import annotations

import errno
import os
import stat

from slotwise.purge._gates import Gates
from slotwise.purge._identity import is_frozen


class DryRunCheck:
    """One directory from which names would be removed."""

    def __init__(self, fd: int, gates: Gates) -> None:
        self._fd = fd
        self._gates = gates
        gates.scan_in()
        try:
            self._writable = os.access(".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True)
            self._frozen = is_frozen(fd)
            directory = os.fstat(fd)
        finally:
            gates.scan_out()
        user = os.geteuid()
        self._only_own = bool(directory.st_mode & stat.S_ISVTX) and user not in (
            0,
            directory.st_uid,
        )
        self._user = user

    def check(self, name: str, found: os.stat_result) -> None:
        """Raise what the removal of ``name``, which is ``found``, would raise."""
        if not self._writable and not self._frozen:
            raise PermissionError(errno.EACCES, "Permission denied")
        if self._frozen or (self._only_own and found.st_uid != self._user) or self._is_frozen(name):
            raise PermissionError(errno.EPERM, "Operation not permitted")

    def _is_frozen(self, name: str) -> bool:
        self._gates.scan_in()
        try:
            return is_frozen(self._fd, name)
        finally:
            self._gates.scan_out()
