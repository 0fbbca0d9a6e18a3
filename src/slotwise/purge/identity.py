"""Which directory is this, and on which mount: what a descriptor refers to, in one call.

``statx`` tells the mount's id, so that a bind mount of the same file system is seen
as what it is. Where it is missing, the device has to do.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from typing import Any, NamedTuple

_AT_EMPTY_PATH = 0x1000
_WANTED = 0x100 | 0x1000  # STATX_INO | STATX_MNT_ID
_MNT_ID = 0x1000
# struct statx: mask at 0, ino at 32, device numbers at 136, mount id at 144
_FIELDS = struct.Struct("<I28xQ96xIIQ")


class Identity(NamedTuple):
    device: int
    inode: int
    mount: int | None


class _Buffer(threading.local):
    def __init__(self) -> None:
        self.raw = ctypes.create_string_buffer(256)


def _find_statx() -> Any:
    try:
        # PyDLL keeps the GIL: the call is about an open descriptor and never waits.
        function = ctypes.PyDLL(None).statx
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


_statx = _find_statx()
_buffer = _Buffer()


def identity_of(fd: int) -> Identity:
    """What ``fd`` refers to; ``mount`` is None where the kernel does not tell."""
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
