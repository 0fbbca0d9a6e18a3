"""Exceptions that this driver raises to itself; callers get public ones instead."""

from __future__ import annotations

from slotwise._core.messages import INTERRUPTED


class Busy(Exception):
    """Another process had the file's lock the whole time. Nothing was changed."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid  # of the process that has the lock; None if unknown


class Retired(Exception):
    """The SemaphoreFile was closed when nobody here used it; ask the LocalProcess for another."""


class Missing(Exception):
    """There is no such semaphore, and the caller gave no value to create it with."""


class Interrupted(RuntimeError):
    """A signal handler or finalizer interrupted a change, and asked for another one."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)
