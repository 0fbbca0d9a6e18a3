"""ProcessSemaphore: the public face of the driver for the processes of one machine.

It checks arguments, asks, waits, and cleans up. Who gets a slot is decided by
the ledger in the semaphore's file; how that is read and changed is the room's
business.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import secrets
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from slotwise._core.arguments import (
    MOST_SLOTS,
    UNSET,
    Unset,
    check_count,
    check_flag,
    check_label,
    check_name,
    check_seconds,
)
from slotwise._core.copying import make
from slotwise._core.limit import refuse_to_block_a_loop
from slotwise._core.results import AcquisitionResult, SemaphoreStats, acquisition_id_of
from slotwise._wait import clock
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes import _inspect, _log, _messages
from slotwise.processes import _process as processes
from slotwise.processes._acquisition import MakeWaker, ProcessAcquisition, closed_door
from slotwise.processes._file_changes import PATIENCE
from slotwise.processes._folder import PRIVATE_SUFFIX, SUFFIX, locate, true_path
from slotwise.processes._in_thread import in_thread
from slotwise.processes._inspecting import INLINE, Looking
from slotwise.processes._messages import Busy, Missing, Retired
from slotwise.processes._semaphore_file import SemaphoreFile

_AN_INSTANT = 1.0  # for those who may not wait for a slot at all


class ProcessSemaphore(Looking):
    """A semaphore for all processes of one user on one machine.

    Instances of one name and folder are one semaphore, in whatever process.
    ``name=None`` makes a private one, for this process and those that it forks: it
    is in no list, and leaves nothing behind.

    Args:
        value: how many slots there are, up to 2**53.
        name: what instances share it by.
        max_acquire_time: the longest wait in seconds; None waits for ever.
        ttl: the longest hold in seconds; then the slot is freed, whoever has it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        directory: the folder for the files; else that of SLOTWISE_DIR, else one
            for this user in the system's temporary folder.
    """

    __slots__ = (
        "_directory",
        "_era",
        "_home",
        "_name_here",
        "_room",
        "_written_name",
    )

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
        super().__init__()
        self._declared = check_count("value", value, most=MOST_SLOTS)
        self._name = check_name(name)
        self._written_name = self._name or f"private-{secrets.token_hex(8)}"
        self._written_name.encode()  # ValueError now, and not in the middle of something
        self._max_acquire_time = check_seconds("max_acquire_time", max_acquire_time)
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        self._directory = locate(directory)
        self._name_here = true_path(self._directory), self._written_name
        self._generation = processes.generations.current(self._name_here)
        self._room: SemaphoreFile | None = None  # opened at first use
        self._era: object = None
        self._home: object = None
        if name is None:  # the one who makes it also sees to it that nothing is left of it
            self._home = processes.era
            leave = weakref.finalize(
                self, processes.discard, self._directory, self._written_name, self._home
            )
            leave.atexit = False  # then all that were made here are seen to

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
        """The semaphore of that name, whatever its value.

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
        _inspect.check_exists(semaphore._directory, semaphore._written_name)
        semaphore.stats_sync()
        return semaphore

    @classmethod
    def names(cls, directory: str | os.PathLike[str] | None = None) -> list[str]:
        """The names of all semaphores in the folder, idle ones too, in alphabetical order."""
        return _inspect.names(locate(directory))

    def __repr__(self) -> str:
        return f"<ProcessSemaphore {self._written_name!r} value={self.value}, {self._directory}>"

    def _arguments(self) -> dict[str, Any]:
        return {
            "value": self._declared,
            "name": self._name,
            "max_acquire_time": self._max_acquire_time,
            "ttl": self._ttl,
            "cancel_task_after_ttl": self._cancel_task_after_ttl,
            "directory": self._directory,
        }

    def _remake(self) -> tuple[Callable[..., Self], tuple[Any, ...]] | None:
        if self._declared is not None:
            return super()._remake()
        arguments = self._arguments()  # of an existing one, whatever its value
        del arguments["value"]
        return make, (type(self).existing, (), arguments)

    @property
    def directory(self) -> Path:
        """The folder for the files."""
        return self._directory

    @property
    def value(self) -> int:
        """How many slots there are, as this process last saw it."""
        state = None if self._room is None else self._room.state
        if state is not None and state.accepts(self._declared):
            return state.value
        return self._declared or 1

    @property
    def resized(self) -> bool:
        """Whether `resize` gave it another value than it was made with, as last seen."""
        state = None if self._room is None else self._room.state
        return state is not None and state.resized

    def _attached(self) -> SemaphoreFile:
        """The room of this process; another one after a fork, or when it was idle for long."""
        room = self._room
        if room is None or room.retired or self._era is not processes.era:
            self._era = processes.era
            process = processes.process_for(self._directory)
            suffix = PRIVATE_SUFFIX if self._name is None else SUFFIX
            self._room = room = process.room(self._written_name, suffix)
            if self._home is self._era:
                process.private.add(self._written_name)
        return room

    # ---------------------------------------------------------------- taking

    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival of all processes.

        A wait that is cancelled or times out takes no slot. ``label`` is shown
        by `holders` and `waiters`.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: the name is in use with another value.
            ValueError: ``slots`` is more than the semaphore has.
            BackendError: the file can't be used; the message tells the remedy.
        """
        acquisition = self._new(slots, timeout, label)
        if self._cancel_task_after_ttl:
            acquisition.task = asyncio.current_task()
        make_waker = asyncio.get_running_loop().create_future
        try:
            try:
                granted = self._ask(acquisition, make_waker, INLINE)
            except Busy:
                patience = _patience(acquisition.timeout)
                granted = await in_thread(
                    partial(self._ask, acquisition, make_waker, patience),
                    partial(self._clean_up, acquisition),
                )
            if not granted:
                await self._wait(acquisition)
            elif acquisition.room.members.woken:
                await acquisition.room.members.woken.let_pass()
            _log.acquired(acquisition)
        except Busy as stuck:
            raise _messages.never_asked(
                self._written_name, acquisition.timeout or 0.0, acquisition.room.path, stuck
            ) from None
        except BaseException:  # cancelled, for one, or collected together with its event loop
            self._clean_up(acquisition)
            raise
        return acquisition

    def acquire_sync(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
    ) -> AcquisitionResult:
        refuse_to_block_a_loop("acquire_sync()")
        acquisition = self._new(slots, timeout, label)
        try:
            if not self._ask(acquisition, closed_door, _patience(acquisition.timeout)):
                self._wait_sync(acquisition)
            _log.acquired(acquisition)
        except Busy as stuck:
            raise _messages.never_asked(
                self._written_name, acquisition.timeout or 0.0, acquisition.room.path, stuck
            ) from None
        except BaseException:  # KeyboardInterrupt, for one
            self._clean_up(acquisition)
            raise
        return acquisition

    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None:
        acquisition = self._new(slots, None, label)
        if self._cancel_task_after_ttl:
            acquisition.task = asyncio.current_task()
        try:
            try:
                granted = self._ask(acquisition, None, INLINE)
            except Busy:
                granted = await in_thread(
                    partial(self._ask, acquisition, None, PATIENCE),
                    partial(self._clean_up, acquisition),
                )
        except Busy as stuck:
            raise _messages.busy(acquisition.room.path, stuck) from None
        except BaseException:
            self._clean_up(acquisition)
            raise
        return acquisition if granted else None

    def try_acquire_sync(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None:
        acquisition = self._new(slots, None, label)
        try:
            granted = self._ask(acquisition, None, PATIENCE)
        except Busy as stuck:
            raise _messages.busy(acquisition.room.path, stuck) from None
        except BaseException:
            self._clean_up(acquisition)
            raise
        return acquisition if granted else None

    def _new(
        self, slots: int, timeout: float | Unset | None, label: str | None
    ) -> ProcessAcquisition:
        if slots != 1 or type(slots) is not int:  # True is 1, and no number of slots
            check_count("slots", slots)
        if timeout is UNSET:
            timeout = self._max_acquire_time
        elif timeout is not None:
            timeout = check_seconds("timeout", timeout, zero=True)
        if label is not None:
            check_label(label)
        room = self._attached()
        process = room.process
        acquisition_id = f"{process.owner}-{process.next_number()}"
        now = clock.now()
        generation = self._generation
        return ProcessAcquisition(
            acquisition_id, room, slots, self._ttl, timeout, label, now, generation
        )

    def _ask(
        self, acquisition: ProcessAcquisition, make_waker: MakeWaker | None, patience: float | None
    ) -> bool:
        """Ask for slots; False if it has to wait, or was told not to."""
        timeout = acquisition.timeout
        if timeout == 0:
            make_waker = None
        room = acquisition.room
        room.process.post.start()
        while True:
            try:
                granted = room.ask(acquisition, self._declared, make_waker, patience)
            except Retired:
                acquisition.room = room = self._attached()
            except Missing:
                raise _messages.unknown(self._directory, self._written_name) from None
            else:
                break
        if timeout == 0 and not granted:
            raise _messages.timed_out(self._written_name, 0.0, room.known())
        return granted

    async def _wait(self, acquisition: ProcessAcquisition) -> None:
        try:
            await cast("asyncio.Future[None]", acquisition.waker)
        finally:
            acquisition.room.members.woken.discard(acquisition.waker)
        if acquisition.failure is not None:
            raise acquisition.failure

    def _wait_sync(self, acquisition: ProcessAcquisition) -> None:
        cast("_thread.LockType", acquisition.waker).acquire()
        if acquisition.failure is not None:
            raise acquisition.failure

    def _clean_up(self, acquisition: ProcessAcquisition) -> None:
        """See to it that nothing is left of a request whose outcome nobody will see."""
        if acquisition.asked and acquisition.failure is None:
            acquisition.room.withdraw(acquisition.acquisition_id)

    # ---------------------------------------------------------------- giving

    async def release(self, acquisition_id: str | AcquisitionResult) -> bool:
        acquisition_id = acquisition_id_of(acquisition_id)
        if processes.is_inherited(acquisition_id):
            return False  # its parent process has it
        holder = self._before_release(acquisition_id)
        freed = await self._do_async(SemaphoreFile.release, acquisition_id)
        if freed and holder is not None:
            _log.released(holder)
        return freed

    def release_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `release`; a thread that is interrupted meanwhile has released all the same."""
        acquisition_id = acquisition_id_of(acquisition_id)
        if processes.is_inherited(acquisition_id):
            return False
        holder = self._before_release(acquisition_id)
        freed = self._do(SemaphoreFile.release, acquisition_id)
        if freed and holder is not None:
            _log.released(holder)
        return freed

    def _before_release(self, acquisition_id: str) -> ProcessAcquisition | None:
        """The holder, if it is one of this process's; its task is not cancelled any more."""
        room = self._attached()
        if room.process.condemned:
            expired = room.process.condemned.pop(acquisition_id, None)
            if expired is not None:
                expired.condemned = False
        return room.members.all.get(acquisition_id)

    # --------------------------------------------------------------- closing

    async def close(self) -> None:
        self.close_sync()

    def close_sync(self) -> None:
        if self._generation.closed:
            return
        room = processes.open_room(self._directory, self._written_name)
        members = () if room is None else list(room.members.all)
        processes.generations.close(self._name_here, members)
        if room is not None:
            room.fail_closed()

    # ------------------------------------------------------------ statistics

    @classmethod
    async def get_acquired_stats(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        directory: str | os.PathLike[str] | None = None,
    ) -> dict[str, SemaphoreStats]:
        """The statistics of the semaphores in a folder, fullest first.

        Idle ones are left out unless they are asked for by name, and so are those whose
        file can't be read: a WARNING names them.

        Args:
            names: only these; unknown ones are left out.
            limit: at most so many.
            directory: the folder, as for the constructor.
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
        if isinstance(names, str):
            raise TypeError(f"names must be several names, not the str {names!r}")
        check_count("limit", limit)
        found = {}
        for name in cls.names(directory) if names is None else dict.fromkeys(names):
            try:
                stats = cls.existing(name, directory=directory).stats_sync()
            except UnknownSemaphore:
                continue
            except BackendError as error:  # one bad file is not the end
                _log.unreadable(name, error)
                continue
            if names is not None or stats.acquired_slots or stats.waiting:
                found[name] = stats
        shown = sorted(
            found.items(), key=lambda item: (-item[1].acquired_percent, -item[1].waiting, item[0])
        )
        return dict(shown[:limit])


def _patience(timeout: float | None) -> float | None:
    """How long to try for the file's lock; others may have it for an instant, even for `0`."""
    return None if timeout is None else max(timeout, _AN_INSTANT)
