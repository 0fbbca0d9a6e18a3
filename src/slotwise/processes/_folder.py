"""Where the files are: the folder, the names in it, and what to say when they can't be used.

Nothing here reads or locks a file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import string
from pathlib import Path

from slotwise.errors import BackendError

SUFFIX = ".slots"
PRIVATE_SUFFIX = ".private"  # for semaphores without a name, which nobody lists
# A folder in the folder, for the fifos of processes: who looks for them meets nothing else.
FIFOS = "wake"

_PLAIN = frozenset(string.ascii_letters + string.digits + "_-")
_LONGEST = 150  # of the readable part, so that the whole stays below the 255 of most systems

_REMEDIES = {
    errno.ENOSPC: "the disk is full: make room, or set SLOTWISE_DIR to a folder elsewhere",
    errno.EDQUOT: "the quota is used up: make room, or set SLOTWISE_DIR to a folder elsewhere",
    errno.EFBIG: "it would exceed the limit for file sizes (ulimit -f): raise that",
    errno.EROFS: "the file system is read-only: set SLOTWISE_DIR to a folder that can be written",
    errno.EACCES: "it may not be used: look at its owner and mode, or set SLOTWISE_DIR",
    errno.EPERM: "it may not be used: look at its owner and mode, or set SLOTWISE_DIR",
    errno.ENOENT: "it is not there: make its parent folder first",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOLCK: "this file system has no locks: set SLOTWISE_DIR to a folder on a local disk",
    errno.ENOTSUP: "this file system has no locks: set SLOTWISE_DIR to a folder on a local disk",
    errno.ENOSYS: "this file system has no locks: set SLOTWISE_DIR to a folder on a local disk",
    errno.EINVAL: "it is not a file of slotwise's: remove it",
    errno.EISDIR: "it is a folder: remove it",
    errno.ELOOP: "it is a symbolic link: remove it",
    errno.ENXIO: "it is no file: remove it",
    errno.EIO: "the disk reports an error: look at the system's log",
}


def trouble(error: OSError, path: str | Path) -> BackendError:
    """What to tell a caller whose file can't be used: which one, why, and the remedy."""
    remedy = _REMEDIES.get(error.errno or 0, "it can't be used")
    if error.errno == errno.ENOENT:
        above = Path(path).parent
        if (above.parent if above.name == FIFOS else above).is_dir():  # as in /proc
            remedy = "no file can be made there: set SLOTWISE_DIR to a folder on a disk"
    return BackendError(f"{path}: {remedy} ({error.strerror or error})")


def locate(directory: str | os.PathLike[str] | None) -> Path:
    """The folder that a semaphore's files belong in; it need not be there yet.

    Never a folder of TMPDIR or XDG: those differ between a shell, cron and a
    service, and two processes that mean the same semaphore would have two.
    """
    given = directory if directory is not None else os.environ.get("SLOTWISE_DIR") or None
    if given is not None:
        if not isinstance(given, str | os.PathLike):
            raise TypeError(f"directory must be a path or None, not {directory!r}")
        return Path(os.path.abspath(os.fspath(given)))  # noqa: PTH100 - resolve() would hide a symlink
    base = next((each for each in ("/tmp", "/var/tmp") if os.path.isdir(each)), "/tmp")  # noqa: S108, PTH112
    return Path(base, f"slotwise-{os.getuid()}")


def true_path(folder: Path) -> Path:
    """The path of a folder without symbolic links on the way to it.

    Not resolved to its end: a link in its own place is not followed but refused, and may
    come and go in the middle of this.
    """
    try:
        return folder.parent.resolve() / folder.name
    except OSError:
        return folder


def key_of(name: str) -> str:
    """What tells the file of ``name`` from all others, in 16 letters."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def key_in(file: str) -> str:
    """The key in the name of a file."""
    return file.rpartition(".")[0].rpartition(".")[2]


def file_name(name: str, suffix: str = SUFFIX) -> str:
    """A name that every file system takes: readable, and the key behind it."""
    return f"{_quote(name)[:_LONGEST]}.{key_of(name)}{suffix}"


def name_in(file: str) -> str | None:
    """The semaphore's name in that of its file; None if it was too long for it."""
    quoted, _, key = file.rpartition(".")[0].rpartition(".")
    try:
        name = _unquote(quoted)
    except ValueError:  # cut in the middle of a letter
        return None
    return name if key_of(name) == key else None


def _quote(name: str) -> str:
    return "".join(
        char if char in _PLAIN else "".join(f"%{byte:02x}" for byte in char.encode())
        for char in name
    )


def _unquote(quoted: str) -> str:
    plain, *coded = quoted.split("%")
    raw = plain.encode()
    for piece in coded:
        raw += bytes.fromhex(piece[:2]) + piece[2:].encode()
    return raw.decode()
