"""The text of messages that only this driver has; the shared ones are in `_core.messages`."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from slotwise._core.messages import (
    KICKED,
    no_slot,
    wait_failed,
)
from slotwise._core.redaction import redact
from slotwise.errors import (
    AcquireTimeout,
    BackendError,
    UnknownSemaphore,
)
from slotwise.processes._filenames import FIFOS
from slotwise.processes._views import fullness

if TYPE_CHECKING:
    from slotwise.processes._acquisition import ProcessAcquisition
    from slotwise.processes._journal import Busy
    from slotwise.processes._state import State

LOST_REASONS = {  # by the event that ended the hold
    "kicked": KICKED,
    "released": "somebody else released it",
    "ended": "somebody else released or kicked it, or its file was deleted",
    "owner died": "its process seemed dead: other code in it opened and closed the file",
}

NO_SPACE_REMEDY = "free some space, or set SLOTWISE_DIR to a directory elsewhere"
_NO_PERMISSION = "permission denied: check its owner and mode, or set SLOTWISE_DIR"
_NO_LOCKS = "this file system has no locks: set SLOTWISE_DIR to a directory on a local disk"

_REMEDIES = {
    errno.ENOSPC: f"the disk is full: {NO_SPACE_REMEDY}",
    errno.EDQUOT: f"the disk quota is used up: {NO_SPACE_REMEDY}",
    errno.EFBIG: "it would exceed the limit for file sizes: raise the limit (ulimit -f)",
    errno.EROFS: "the file system is read-only: set SLOTWISE_DIR to a writable directory",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.ENOENT: "it does not exist: create its parent directory first",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOLCK: _NO_LOCKS,
    errno.ENOTSUP: _NO_LOCKS,
    errno.ENOSYS: _NO_LOCKS,
    errno.EINVAL: "not a file of slotwise: remove it",
    errno.EISDIR: "it is a directory: remove it",
    errno.ELOOP: "it is a symbolic link: remove it",
    errno.ENXIO: "not a regular file: remove it",
    errno.EIO: "the disk reports an error: check the system log",
}


# ---------------------------------------------------------------- the files


def os_error(error: OSError, path: str) -> BackendError:
    """Return an error that says which file can't be used, why, and what to do about it."""
    if isinstance(error, BackendError):  # an OSError too, and it says all that already
        return error
    remedy = _REMEDIES.get(error.errno or 0, "it can't be used")
    if error.errno == errno.ENOENT:
        parent, name = os.path.split(os.path.dirname(path))  # noqa: PTH120
        if os.path.isdir(parent if name == FIFOS else f"{parent}/{name}"):  # noqa: PTH112 - as in /proc
            remedy = "no file can be created there: set SLOTWISE_DIR to a directory on a disk"
    return path_error(path, f"{remedy} ({error.strerror or error})")


def path_error(path: str, text: str) -> BackendError:
    # Somebody may have taken a url with a password for a path.
    return BackendError(f"{redact(str(path))}: {text}")


# ------------------------------------------------------------ the file's lock


def busy(path: str, error: Busy) -> BackendError:
    return path_error(path, lock_taken(error.pid))


def lock_taken(pid: int | None, lock: str = "its lock") -> str:
    """Say which process has the lock of a file, and how to get it back."""
    if pid is None:
        return (
            f"another process kept {lock} the whole time; it may be stopped:"
            " find it with `lslocks`, and continue it with `kill -CONT`"
        )
    if is_stopped(pid):
        return f"process {pid} is stopped and kept {lock}: continue it with `kill -CONT {pid}`"
    return (
        f"process {pid} kept {lock} the whole time; it may be stopped:"
        f" continue it with `kill -CONT {pid}`"
    )


def stuck_error(name: str, pid: int) -> BackendError:
    state = ", which is stopped" if is_stopped(pid) else ""
    return BackendError(
        f"{name!r} is locked by process {pid}{state}: continue it with `kill -CONT {pid}`, or end"
        f" it with `kill -9 {pid}`"
    )


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger stopped the process, if the system can tell."""
    try:
        # The name, in parentheses, can contain anything; the state is the letter after it.
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[:1] in ([b"T"], [b"t"])


# ------------------------------------------------------------- the semaphore


def unknown(directory: str, name: str) -> UnknownSemaphore:
    return UnknownSemaphore(f"there is no semaphore {name!r} in {redact(str(directory))}")


def timed_out(
    acquisition: ProcessAcquisition, state: State, now: float, lock_error: Busy | None = None
) -> AcquireTimeout:
    """``lock_error``: nothing could be changed either when the time was up."""
    title, timeout = acquisition.backend._title, acquisition.timeout or 0.0
    full = fullness(state, acquisition.wanted, now)
    if lock_error is not None:
        full += f"; {lock_taken(lock_error.pid, 'the lock of its file')}"
        return wait_failed(LockTaken, title, timeout, full)
    return no_slot(title, timeout, full)


def timed_out_locked(acquisition: ProcessAcquisition, busy: str) -> AcquireTimeout:
    """The lock was taken the whole time, so there was no place in the queue either."""
    title, timeout = acquisition.backend._title, acquisition.timeout or 0.0
    return wait_failed(LockTaken, title, timeout, busy)


class LockTaken(AcquireTimeout, BackendError):
    """The time was up, and the file could not be read: nobody knows whether there was a slot."""


def wait_lost(path: str) -> BackendError:
    return path_error(
        path,
        "this waiter lost its place in the queue: the file was deleted, or other code in"
        " this process opened and closed it",
    )
