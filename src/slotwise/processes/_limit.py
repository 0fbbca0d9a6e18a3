"""ProcessLimit: what semaphores and tiers of the processes of one machine share.

It knows the file behind an instance, makes acquisitions, and has everything that doesn't depend on
what is asked for: waiting, releasing, kicking, closing. `_operations` changes the file.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core import events
from slotwise._core.adaptive import Outcome, check_outcome
from slotwise._core.closing import Closure, Generation
from slotwise._core.control import Verb, Where
from slotwise._core.limit import require_asyncio
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.twins import is_blocking
from slotwise._wait import clock
from slotwise.errors import SemaphoreClosed
from slotwise.processes import _log
from slotwise.processes import _operations as operations
from slotwise.processes import _process as processes
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._attachment import Attachment
from slotwise.processes._filenames import true_path
from slotwise.processes._wait_for_grant import (
    try_request,
    wait_for_grant,
)

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

A = TypeVar("A", bound=ProcessAcquisition)
T = TypeVar("T")

# Empty, since a class can't inherit from two with slots. Not a literal, which mypy would take for
# the only attributes.
_SLOTS_OF_SUBCLASSES: tuple[str, ...] = ()


class ProcessLimit:
    """A limit in a file."""

    __slots__ = _SLOTS_OF_SUBCLASSES

    _attachment: Attachment
    _cancel_task_after_ttl: bool
    _declared: Any  # the value or the tiers it was made with; None accepts any
    _generation: Generation
    _generation_key: tuple[str, str, str]
    _holds_nothing: Any = False  # whether it has nothing but rates
    _ttl: float | None

    if TYPE_CHECKING:  # both kinds have them

        @property
        def _title(self) -> str: ...

        def _closed_error(self, closure: Closure | None = None) -> SemaphoreClosed: ...

    def _attach(self, path: str, name: str | None, suffix: str) -> None:
        """Find its file; without a name, it is a private one."""
        stored_name = name or f"private-{os.urandom(8).hex()}"
        stored_name.encode()  # a ValueError here, and not in the middle of a change
        self._attachment = Attachment(path, stored_name, suffix)
        self._generation_key = true_path(path), stored_name, suffix
        self._generation = processes.generations.current(self._generation_key)
        if name is None:  # its file is deleted by the process that made it
            made_in = self._attachment.made_in
            collected = processes.on_collected
            finalizer = weakref.finalize(self, collected, path, stored_name, suffix, made_in)
            finalizer.atexit = False  # LocalProcess.on_exit does that

    @property
    def directory(self) -> Path:
        """The directory for the files."""
        from pathlib import Path  # inside, paths are str: it is slow to import

        return Path(self._attachment.directory)

    def _new_acquisition(
        self,
        wanted: Any,
        timeout: float | None,
        label: str | None,
        made: type[A],
    ) -> A:
        file = self._attachment.file()
        process = file.process
        acquisition_id = f"{process.owner}-{process.next_number()}"
        now = clock.now()
        if events.hooks:
            self._tell_new(acquisition_id, wanted, now)
        return made(acquisition_id, file, wanted, self._ttl, timeout, label, now, self._generation)

    def _tell_new(self, acquisition_id: str, wanted: Any, now: float) -> None:
        """Tell the hooks that a request begins."""
        raise NotImplementedError

    def _acquire(self, acquisition: ProcessAcquisition) -> Coroutine[Any, Any, ProcessAcquisition]:
        """Request it and wait, for a caller that awaits this at once."""
        if self._cancel_task_after_ttl:
            acquisition.task = _waiting_task()
        return wait_for_grant(self._attachment, self._declared, acquisition)

    def _try(
        self, acquisition: ProcessAcquisition
    ) -> Coroutine[Any, Any, ProcessAcquisition | None]:
        """Request it without waiting for others; None if it isn't granted."""
        if self._cancel_task_after_ttl:
            acquisition.task = _waiting_task()
        return try_request(self._attachment, self._declared, acquisition)

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        """Release an acquisition, by its id or its result; False if it had ended.

        A signal handler that raises meanwhile doesn't prevent that.
        """
        acquisition_id = acquisition_id_of(acquisition_id)
        if outcome is not None:
            check_outcome(outcome)
        if self._holds_nothing or processes.is_inherited(acquisition_id):
            return False  # the parent process holds it, or nobody
        holder = self._before_release(acquisition_id)
        released = await self._attachment.call(operations.release, acquisition_id, outcome)
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
            return
        if holder is not None:
            _log.released(holder)
        if events.hooks:
            self._tell_moved()

    def _tell_moved(self) -> None:
        """Tell the hooks how adaptive values were moved by releases here."""
        raise NotImplementedError

    # --------------------------------------------------------- inspecting, controlling

    async def _inspect(self, read: Callable[[Any], T], at_most: float | None = None) -> T:
        found: T = await self._attachment.call(
            operations.inspect, read, self._declared, at_most=at_most
        )
        return found

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End a hold of any process; return False if it had ended before.

        The holder's `lost` is set, and the next waiter gets the slots.
        """
        kicked_id = acquisition_id_of(acquisition_id)
        return await self._attachment.call(operations.kick, kicked_id)

    async def close(self) -> None:
        """Close all instances of the name that this process made so far."""
        if self._generation.closed:
            return
        attachment = self._attachment
        file = processes.open_file(attachment.directory, attachment.name, attachment.suffix)
        ids = () if file is None else list(file.claims.by_id)
        processes.generations.close(self._generation_key, ids)
        if file is not None:
            file.fail_closed()

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        if verb == "forget":
            return await self._attachment.call(operations.forget)
        return await self._attachment.call(operations.control, verb, where, args, self)

    def _located(self, where: Where) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return a tier and a key as records have them; nothing for a semaphore."""
        raise NotImplementedError

    def _resized(self, where: Where, value: Any) -> Sequence[Any]:
        """Return the arguments of the record of a resize."""
        raise NotImplementedError


def _waiting_task() -> asyncio.Task[Any] | None:
    """Return the task that acquires; None if a plain thread does."""
    if is_blocking():
        return None
    import asyncio

    return asyncio.current_task(require_asyncio())
