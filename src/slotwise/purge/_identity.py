"""Ask ``statx`` what ``os.stat`` doesn't tell: the mount of a directory, and immutable files.

The mount id tells a bind mount of the same file system apart. Without ``statx``, only the device
number is compared.

With that, a dry run predicts whether the kernel would let this user remove a name, in the kernel's
order: is the directory frozen, may this user write to it, is it sticky with both directory and file
owned by somebody else, is the file itself immutable or append-only. What a security module or a
network file server decides can't be predicted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from typing import Any, NamedTuple

from slotwise.purge._gates import Gates

_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_WANTED = 0x100 | 0x1000  # STATX_INO | STATX_MNT_ID
_MNT_ID = 0x1000
# struct statx: mask at 0, ino at 32, device numbers at 136, mount id at 144
_FIELDS = struct.Struct("<I28xQ96xIIQ")
_ATTRIBUTES = struct.Struct("<8xQ")
_IMMUTABLE_OR_APPEND_ONLY = 0x10 | 0x20


class Identity(NamedTuple):
    device: int
    inode: int
    mount: int | None


class _Buffer(threading.local):
    def __init__(self) -> None:
        self.raw = ctypes.create_string_buffer(256)


def _find_statx(library: type[ctypes.CDLL]) -> Any:
    try:
        function = library(None).statx
    except (AttributeError, OSError):
        return None
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    ]
    function.restype = ctypes.c_int
    return function


# PyDLL keeps the GIL: a call on an open descriptor never waits. A call with a name may.
_statx = _find_statx(ctypes.PyDLL)
_statx_of_a_name = _find_statx(ctypes.CDLL)
_buffer = _Buffer()


def identity_of(fd: int) -> Identity:
    """Return what ``fd`` refers to; ``mount`` is None where the kernel doesn't say."""
    if _statx is not None:
        raw = _buffer.raw
        if _statx(fd, b"", _AT_EMPTY_PATH, _WANTED, raw) == 0:
            mask, inode, major, minor, mount = _FIELDS.unpack_from(raw)
            return Identity(os.makedev(major, minor), inode, mount if mask & _MNT_ID else None)
    found = os.fstat(fd)
    return Identity(found.st_dev, found.st_ino, None)


def same_mount(one: Identity, other: Identity) -> bool:
    if one.mount is not None and other.mount is not None:
        return one.mount == other.mount
    return one.device == other.device


def is_frozen(fd: int, name: str | None = None) -> bool:
    """Whether a directory, or a name in it, is immutable or append-only, as ``chattr`` makes it.

    False where the kernel doesn't say.
    """
    if _statx_of_a_name is None:
        return False
    raw = _buffer.raw
    flags = _AT_EMPTY_PATH if name is None else _AT_SYMLINK_NOFOLLOW
    if _statx_of_a_name(fd, b"" if name is None else os.fsencode(name), flags, 0, raw) != 0:
        return False
    (attributes,) = _ATTRIBUTES.unpack_from(raw)
    return bool(attributes & _IMMUTABLE_OR_APPEND_ONLY)


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
