"""ProcessSemaphore: the public class of the driver for the processes of one machine.

It checks arguments, and makes acquisitions. The ledger in the semaphore's file decides who
gets a slot; `_operations` changes that file, and `_wait_for_grant` waits.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from slotwise._core.arguments import (
    MOST_SLOTS,
    UNSET,
    Unset,
    check_count,
    check_label,
    check_reason,
    check_timeout,
)
from slotwise._core.copying import Recipe
from slotwise._core.limit import refuse_to_block_a_loop
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats, acquisition_id_of
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock
from slotwise.processes import _inspect, _log
from slotwise.processes import _operations as operations
from slotwise.processes import _process as processes
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._attachment import Attachment
from slotwise.processes._filenames import locate, true_path
from slotwise.processes._in_thread import in_thread
from slotwise.processes._state import State
from slotwise.processes._wait_for_grant import (
    try_request,
    try_request_sync,
    wait_for_grant,
    wait_for_grant_sync,
)

T = TypeVar("T")


class ProcessSemaphore(Semaphore):
    """A semaphore for all processes of one user on one machine.

    Instances with the same name and directory are one semaphore, in whatever process.
    ``name=None`` makes a private one, for this process and those that it forks: it isn't
    listed, and leaves nothing behind.

    Args:
        value: how many slots there are, up to 2**53.
        name: the name that instances share.
        max_acquire_time: the longest wait in seconds; None waits forever.
        ttl: the longest hold in seconds; then the slot is freed, whoever holds it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        directory: the directory for the files; by default that of SLOTWISE_DIR, or else one
            for this user in the system's temporary directory.
    """

    __slots__ = ("_attachment", "_declared", "_generation", "_generation_key")

    _declared: int | None  # the value it was made with; None accepts any

    def __init__(
        self,
        value: int,
        *,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(name, max_acquire_time, ttl, cancel_task_after_ttl)
        self._declared = check_count("value", value, most=MOST_SLOTS)
        stored_name = self._name or f"private-{secrets.token_hex(8)}"
        stored_name.encode()  # a ValueError here, and not in the middle of a change
        self._kick_grace = 0.0
        path = locate(directory)
        self._attachment = Attachment(path, stored_name, private=name is None)
        self._generation_key = true_path(path), stored_name
        self._generation = processes.generations.current(self._generation_key)
        if name is None:  # its file is deleted by the process that made it
            made_in = self._attachment.made_in
            finalizer = weakref.finalize(self, processes.on_collected, path, stored_name, made_in)
            finalizer.atexit = False  # LocalProcess.on_exit does that

    @classmethod
    def existing(
        cls,
        name: str,
        *,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        directory: str | os.PathLike[str] | None = None,
    ) -> ProcessSemaphore:
        """Return the semaphore of that name, whatever its value.

        Raises:
            UnknownSemaphore: there is none.
        """
        semaphore = cls(
            value=1,
            name=name,
            max_acquire_time=max_acquire_time,
            ttl=ttl,
            cancel_task_after_ttl=cancel_task_after_ttl,
            directory=directory,
        )
        semaphore._declared = None
        _inspect.check_exists(semaphore.directory, name)
        semaphore.stats_sync()
        return semaphore

    @classmethod
    def names(cls, directory: str | os.PathLike[str] | None = None) -> list[str]:
        """Return the names of all semaphores in the directory, sorted, idle ones too."""
        return _inspect.names(locate(directory))

    def __repr__(self) -> str:
        name, directory = self._attachment.name, self._attachment.directory
        return f"<ProcessSemaphore {name!r} value={self.value}, {directory}>"

    @property
    def _base(self) -> type[ProcessSemaphore]:
        return ProcessSemaphore

    def _arguments(self) -> dict[str, Any]:
        return {"value": self._declared, **super()._arguments(), "directory": self.directory}

    def _recipe(self) -> Recipe | None:
        recipe = super()._recipe()
        if recipe is None or self._declared is not None:
            return recipe
        options = {**recipe.options, "value": 1}  # of an `existing` one, whatever its value
        return recipe._replace(options=options, attributes={"_declared": None})

    @property
    def directory(self) -> Path:
        """The directory for the files."""
        return self._attachment.directory

    @property
    def value(self) -> int:
        """How many slots there are, as this process last saw it."""
        state = self._attachment.state
        if state is not None and state.accepts(self._declared):
            return state.value
        return self._declared or 1

    @property
    def resized(self) -> bool:
        """Whether ``resize()`` has changed the value since it was created, as last seen here."""
        state = self._attachment.state
        return state is not None and state.is_resized

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET, label: str | None = None
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival over all processes.

        As `Limit.acquire` says; and a BackendError if the file can't be used, which names the
        remedy.
        """
        acquisition = self._new(slots, timeout, label)
        if self._cancel_task_after_ttl:
            acquisition.task = asyncio.current_task()
        return await wait_for_grant(self._attachment, self._declared, acquisition)

    def acquire_sync(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET, label: str | None = None
    ) -> AcquisitionResult:
        refuse_to_block_a_loop("acquire_sync()")
        acquisition = self._new(slots, timeout, label)
        return wait_for_grant_sync(self._attachment, self._declared, acquisition)

    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None:
        acquisition = self._new(slots, None, label)
        if self._cancel_task_after_ttl:
            acquisition.task = asyncio.current_task()
        granted = await try_request(self._attachment, self._declared, acquisition)
        return acquisition if granted else None

    def try_acquire_sync(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None:
        acquisition = self._new(slots, None, label)
        granted = try_request_sync(self._attachment, self._declared, acquisition)
        return acquisition if granted else None

    def _new(
        self, slots: int, timeout: float | Unset | None, label: str | None
    ) -> ProcessAcquisition:
        if slots != 1 or type(slots) is not int:  # True equals 1, but is no number of slots
            check_count("slots", slots)
        seconds = check_timeout(timeout, self._max_acquire_time)
        if label is not None:
            check_label(label)
        file = self._attachment.file()
        process = file.process
        acquisition_id = f"{process.owner}-{process.next_number()}"
        now = clock.now()
        generation = self._generation
        acquisition = ProcessAcquisition(
            acquisition_id, file, slots, self._ttl, seconds, label, now, generation
        )
        acquisition.grace = self._kick_grace
        return acquisition

    # ------------------------------------------------------------- releasing

    async def release(self, acquisition_id: str | AcquisitionResult) -> bool:
        acquisition_id = acquisition_id_of(acquisition_id)
        if processes.is_inherited(acquisition_id):
            return False  # the parent process holds it
        holder = self._before_release(acquisition_id)
        released = await self._attachment.call_async(operations.release, acquisition_id)
        self._after_release(acquisition_id, holder, released=released)
        return released

    def release_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `release`; a signal handler that raises meanwhile doesn't prevent it."""
        acquisition_id = acquisition_id_of(acquisition_id)
        if processes.is_inherited(acquisition_id):
            return False
        holder = self._before_release(acquisition_id)
        released = self._attachment.call(operations.release, acquisition_id)
        self._after_release(acquisition_id, holder, released=released)
        return released

    def _before_release(self, acquisition_id: str) -> ProcessAcquisition | None:
        """Return the holder, if it is in this process; its task is not cancelled any more."""
        file = self._attachment.file()
        file.process.ttl_cancels.keep_task(acquisition_id)
        return file.claims.by_id.get(acquisition_id)

    def _after_release(
        self, acquisition_id: str, holder: ProcessAcquisition | None, *, released: bool
    ) -> None:
        if not released:
            _log.released_nothing(self._attachment.file(), acquisition_id)
        elif holder is not None:
            _log.released(holder)

    # ------------------------------------------------------------ inspecting

    async def _locked(self) -> bool:
        return await self._inspect_async(self._is_locked)

    def locked_sync(self) -> bool:
        return self._inspect(self._is_locked)

    def _is_locked(self, state: State) -> bool:
        closed = state.closed or self._generation.closed
        full = state.in_use >= state.value
        return closed or full or bool(state.waiting)

    async def stats(self) -> SemaphoreStats:
        return await self._inspect_async(_inspect.stats_of)

    def stats_sync(self) -> SemaphoreStats:
        return self._inspect(_inspect.stats_of)

    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, in all processes, the longest first."""
        return await self._inspect_async(_inspect.holders_of)

    def holders_sync(self) -> list[Claimant]:
        """Like `holders`."""
        return self._inspect(_inspect.holders_of)

    async def waiters(self) -> list[Claimant]:
        """Return who waits now, in all processes, in the order of the queue."""
        return await self._inspect_async(_inspect.waiters_of)

    def waiters_sync(self) -> list[Claimant]:
        """Like `waiters`."""
        return self._inspect(_inspect.waiters_of)

    async def _inspect_async(self, read: Callable[[State], T]) -> T:
        found: T = await self._attachment.call_async(operations.inspect, read, self._declared)
        return found

    def _inspect(self, read: Callable[[State], T]) -> T:
        found: T = self._attachment.call(operations.inspect, read, self._declared)
        return found

    @classmethod
    async def get_acquired_stats(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        directory: str | os.PathLike[str] | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Return the statistics of the semaphores in a directory, fullest first.

        Idle ones are left out unless they are asked for by name. Files that can't be read are
        left out too, and named in a WARNING.

        Args:
            names: only these; unknown ones are left out.
            limit: the largest number of semaphores to return.
            directory: as for the constructor.
        """
        return await in_thread(partial(cls.get_acquired_stats_sync, names, limit, directory))

    @classmethod
    def get_acquired_stats_sync(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        directory: str | os.PathLike[str] | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Like `get_acquired_stats`."""
        return _inspect.get_acquired_stats(locate(directory), names, limit)

    # ----------------------------------------------------------- controlling

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End a hold of any process; return False if it had ended before.

        The holder's `lost` is set, and the next waiter gets the slots.
        """
        kicked_id = acquisition_id_of(acquisition_id)
        return await self._attachment.call_async(operations.kick, kicked_id)

    def kick_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `kick`."""
        return self._attachment.call(operations.kick, acquisition_id_of(acquisition_id))

    async def resize(self, value: int) -> None:
        check_count("value", value, most=MOST_SLOTS)
        await self._attachment.call_async(
            operations.resize, value, self._declared, self._generation
        )

    def resize_sync(self, value: int) -> None:
        check_count("value", value, most=MOST_SLOTS)
        self._attachment.call(operations.resize, value, self._declared, self._generation)

    def _forget_sync(self) -> bool:
        """Delete it if nobody uses it, with all that it remembers; return whether it was."""
        return self._attachment.call(operations.forget)

    async def close(self) -> None:
        self.close_sync()

    def close_sync(self) -> None:
        if self._generation.closed:
            return
        file = processes.open_file(self.directory, self._attachment.name)
        ids = () if file is None else list(file.claims.by_id)
        processes.generations.close(self._generation_key, ids)
        if file is not None:
            file.fail_closed()

    async def close_everywhere(self, reason: str | None = None) -> None:
        reason = check_reason(reason)
        await self._attachment.call_async(operations.close_everywhere, reason, self._declared)

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        reason = check_reason(reason)
        self._attachment.call(operations.close_everywhere, reason, self._declared)

    async def reopen(self) -> None:
        await self._attachment.call_async(operations.reopen)

    def reopen_sync(self) -> None:
        self._attachment.call(operations.reopen)
