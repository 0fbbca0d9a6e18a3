"""Attachment: connect an instance with the file of its semaphore.

After a fork, an instance may be used in a process other than the one that made it; and its file is
closed while nobody uses it. What the operations do is in `_operations`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from slotwise._core.limit import require_asyncio
from slotwise._core.twins import is_blocking
from slotwise.processes import _messages
from slotwise.processes import _process as processes
from slotwise.processes import _semaphore_file as semaphore_file
from slotwise.processes._errors import Busy, Missing, Retired
from slotwise.processes._filenames import PRIVATE_SUFFIXES, SUFFIX
from slotwise.processes._in_thread import in_thread
from slotwise.processes._semaphore_file import SemaphoreFile
from slotwise.processes._state import State

T = TypeVar("T")

# How long a coroutine waits for the file's lock before it leaves that to a thread.
INLINE_LOCK_TIMEOUT = 0.002
# How long a caller waits for it that doesn't wait for a slot.
NO_WAIT_LOCK_TIMEOUT = 1.0


class Attachment:
    """Leads from an instance to the SemaphoreFile of its name in this process."""

    __slots__ = ("_file", "_fork_epoch", "_made_in", "directory", "name", "suffix")

    def __init__(self, directory: str, name: str, suffix: str = SUFFIX) -> None:
        self.directory = directory
        self.name = name  # private ones have one too, by which their file is found
        self.suffix = suffix
        self._made_in = processes.fork_epoch
        self._file: SemaphoreFile | None = None  # until it is first used
        self._fork_epoch: object = None

    @property
    def made_in(self) -> object:
        """The fork epoch that the instance was made in."""
        return self._made_in

    @property
    def state(self) -> State | None:
        """The state of the semaphore, as this process last read it."""
        return None if self._file is None else self._file.state

    def file(self) -> SemaphoreFile:
        """Return the file; another one after a fork, or after it was closed."""
        file = self._file
        if file is None or file.retired or self._fork_epoch is not processes.fork_epoch:
            self._fork_epoch = processes.fork_epoch
            process = processes.process_for(self.directory)
            self._file = file = process.file(self.name, self.suffix)
            if self.suffix in PRIVATE_SUFFIXES and self._made_in is self._fork_epoch:
                process.private[self.name] = self.suffix
        return file

    def call_here(
        self, operation: Callable[..., T], *args: Any, lock_timeout: float | None = None
    ) -> T:
        """Run an operation in this thread.

        Raises:
            BackendError: the file's lock was taken for ``lock_timeout`` seconds, or for the usual
                time if that is None.
            Busy: the same, if that is INLINE_LOCK_TIMEOUT.
        """
        timeout = semaphore_file.LOCK_TIMEOUT if lock_timeout is None else lock_timeout
        while True:
            file = self.file()
            try:
                return operation(file, *args, lock_timeout=timeout)
            except Retired:
                continue
            except Missing:
                raise _messages.unknown(file.process.directory.path, file.name) from None
            except Busy as error:
                if timeout is INLINE_LOCK_TIMEOUT:
                    raise
                raise _messages.busy(file.path, error) from None

    async def call(
        self, operation: Callable[..., T], *args: Any, at_most: float | None = None
    ) -> T:
        """Run an operation; in a thread if an event loop would have to wait long for the file.

        Raises:
            BackendError: the file's lock was taken for ``at_most`` seconds, or for the usual time
                if that is None.
        """
        if is_blocking():
            return self.call_here(operation, *args, lock_timeout=at_most)
        require_asyncio()  # before anything is changed: the thread may be needed
        try:
            return self.call_here(operation, *args, lock_timeout=INLINE_LOCK_TIMEOUT)
        except Busy:
            # Without a thread, a slot is released all the same: that blocks the loop for a moment.
            here = partial(self.call_here, operation, *args, lock_timeout=NO_WAIT_LOCK_TIMEOUT)
            return await in_thread(partial(self.call_here, operation, *args), otherwise=here)

    def call_inline(self, operation: Callable[..., T], *args: Any) -> T:
        """Run an operation; raise Busy if an event loop would have to wait for the file's lock."""
        return self.call_here(operation, *args, lock_timeout=INLINE_LOCK_TIMEOUT)
