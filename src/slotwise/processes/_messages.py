"""What this driver says: its errors, and how a hold came to its end."""

from __future__ import annotations

from pathlib import Path

from slotwise._core.closing import Closure, closed_error
from slotwise._core.messages import value_conflict
from slotwise.errors import (
    AcquireTimeout,
    BackendError,
    SemaphoreClosed,
    UnknownSemaphore,
    ValueConflict,
)
from slotwise.processes._state import State

# How a hold that was not released by its owner came to its end.
REASONS = {
    "expired": "its ttl of {ttl:g} s ended",
    "kicked": "it was kicked",
    "released": "somebody else released it",
    "ended": "somebody else released or kicked it, or its file was deleted",
    "buried": "its process was taken for dead: other code in it opened and closed the file",
}


class Busy(Exception):
    """Inside only: somebody else had the file's lock all the time."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid  # of who has it; None if that can't be told


class Retired(Exception):
    """Inside only: the room was given up when nobody was in it; there may be a new one."""


class Missing(Exception):
    """Inside only: there is no such semaphore, and it is not to be made."""


class Interrupted(RuntimeError):
    """A signal handler or finalizer that interrupted a change asked for another."""

    def __init__(self) -> None:
        super().__init__(
            "a signal handler or finalizer that interrupted slotwise asked it for a slot"
        )


def unknown(folder: Path, name: str) -> UnknownSemaphore:
    return UnknownSemaphore(f"there is no semaphore {name!r} in {folder}")


def closed(name: str, closure: Closure | None = None) -> SemaphoreClosed:
    return closed_error(f"{name!r} is", closure)


def conflict(name: str, declared: int | None, state: State) -> ValueConflict:
    return value_conflict(
        name, declared, value=state.value, held=state.in_use, waiting=len(state.waiting)
    )


def too_many(name: str, slots: int, value: int) -> ValueError:
    return ValueError(
        f"{slots} slots asked of {name!r}, which has {value}: that can never be granted"
    )


def timed_out(name: str, timeout: float, state: State, stuck: Busy | None = None) -> AcquireTimeout:
    """``stuck`` tells who kept the file from being changed meanwhile."""
    return AcquireTimeout(
        f"no slot of {name!r} in {timeout:g} s: {state.in_use} of {state.value}"
        f" held, {len(state.waiting)} others waiting"
        + ("" if stuck is None else "; " + lock_taken(stuck.pid, "the lock of its file"))
    )


def never_asked(name: str, timeout: float, path: Path, stuck: Busy) -> AcquireTimeout:
    return AcquireTimeout(f"no slot of {name!r} in {timeout:g} s: {busy(path, stuck)}")


def busy(path: Path, stuck: Busy) -> BackendError:
    return BackendError(f"{path}: {lock_taken(stuck.pid)}")


def lock_taken(pid: int | None, lock: str = "its lock") -> str:
    """Who has the lock of a file, and how to get it back."""
    if pid is None:
        return (
            f"another process has had {lock} all the time: is that stopped?"
            " `lslocks` tells which, `kill -CONT` lets it go on"
        )
    found = f"process {pid} has had {lock} all the time"
    if is_stopped(pid):
        return f"{found} and is stopped: `kill -CONT {pid}` lets it go on"
    return f"{found}: is that stopped? `kill -CONT {pid}` lets it go on"


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger, if this system tells."""
    try:
        # The name, in brackets, may be anything; the state is the letter behind it.
        told = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return told[:1] in ([b"T"], [b"t"])


def damaged(path: Path, damage: Exception) -> BackendError:
    return BackendError(
        f"{path}: its contents are damaged ({damage}): remove it when nobody uses the semaphore"
    )


def place_lost(path: Path) -> BackendError:
    return BackendError(
        f"{path}: the place in the queue was lost: was the file deleted, or opened and closed"
        f" by other code of this process?"
    )
