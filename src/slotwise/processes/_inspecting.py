"""Looking and steering: what a ProcessSemaphore offers beside taking and giving.

Each verb is one call of the room's, in the calling thread; a coroutine leaves it to
another thread when the file's lock is not to be had in an instant.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from slotwise._core.arguments import MOST_SLOTS, check_count, check_reason
from slotwise._core.closing import Generation
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats, acquisition_id_of
from slotwise._core.semaphore import Semaphore
from slotwise.processes import _inspect, _messages
from slotwise.processes._file_changes import PATIENCE
from slotwise.processes._in_thread import in_thread
from slotwise.processes._messages import Busy, Missing, Retired
from slotwise.processes._semaphore_file import SemaphoreFile
from slotwise.processes._state import State

T = TypeVar("T")

# How long a coroutine may wait for the file's lock before a thread does it instead.
INLINE = 0.002


class Looking(Semaphore):
    """A semaphore in a file, for those who want to know or change what it is."""

    __slots__ = ("_declared", "_generation")

    _declared: int | None  # the value it was made with; None takes any
    _generation: Generation  # what a local close closes

    # ------------------------------------------------------------ to the room

    @abstractmethod
    def _attached(self) -> SemaphoreFile:
        """The room of this process; another one after a fork, or when it was idle for long."""

    def _do(self, verb: Callable[..., T], *args: Any, patience: float | None = None) -> T:
        """Call a method of the room, in this thread.

        Raises:
            Busy: ``patience`` seconds were too few to get the file's lock.
            BackendError: those that everybody has who gives none were.
        """
        while True:
            room = self._attached()
            try:
                return verb(room, *args, patience=PATIENCE if patience is None else patience)
            except Retired:
                continue
            except Missing:
                raise _messages.unknown(room.process.folder.path, room.name) from None
            except Busy as stuck:
                if patience is not None:
                    raise
                raise _messages.busy(room.path, stuck) from None

    async def _do_async(self, verb: Callable[..., T], *args: Any) -> T:
        """Call a method of the room; in a thread if somebody has had the file's lock for long."""
        try:
            return self._do(verb, *args, patience=INLINE)
        except Busy:
            return await in_thread(partial(self._do, verb, *args))

    # ---------------------------------------------------------------- looking

    async def _locked(self) -> bool:
        return await self._look_async(self._is_locked)

    def locked_sync(self) -> bool:
        return self._look(self._is_locked)

    async def _look_async(self, see: Callable[[State], T]) -> T:
        seen: T = await self._do_async(SemaphoreFile.look, see, self._declared)
        return seen

    def _look(self, see: Callable[[State], T]) -> T:
        seen: T = self._do(SemaphoreFile.look, see, self._declared)
        return seen

    def _is_locked(self, state: State) -> bool:
        closed = state.closed or self._generation.closed
        full = state.in_use >= state.value
        return closed or full or bool(state.waiting)

    async def stats(self) -> SemaphoreStats:
        return await self._look_async(_inspect.count)

    def stats_sync(self) -> SemaphoreStats:
        return self._look(_inspect.count)

    async def holders(self) -> list[Claimant]:
        """Who holds slots now, in all processes, the longest first."""
        return await self._look_async(_inspect.holders)

    def holders_sync(self) -> list[Claimant]:
        """Like `holders`."""
        return self._look(_inspect.holders)

    async def waiters(self) -> list[Claimant]:
        """Who waits now, in all processes, first come first."""
        return await self._look_async(_inspect.waiters)

    def waiters_sync(self) -> list[Claimant]:
        """Like `waiters`."""
        return self._look(_inspect.waiters)

    # --------------------------------------------------------------- steering

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End somebody's hold, of whatever process; False if it had ended before.

        Its `lost` tells the holder, and the next waiter has the slots.
        """
        return await self._do_async(SemaphoreFile.kick, acquisition_id_of(acquisition_id))

    def kick_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `kick`."""
        return self._do(SemaphoreFile.kick, acquisition_id_of(acquisition_id))

    async def resize(self, value: int) -> None:
        check_count("value", value, most=MOST_SLOTS)
        await self._do_async(SemaphoreFile.resize, value, self._declared, self._generation)

    def resize_sync(self, value: int) -> None:
        check_count("value", value, most=MOST_SLOTS)
        self._do(SemaphoreFile.resize, value, self._declared, self._generation)

    async def close_everywhere(self, reason: str | None = None) -> None:
        await self._do_async(SemaphoreFile.close_everywhere, check_reason(reason), self._declared)

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        self._do(SemaphoreFile.close_everywhere, check_reason(reason), self._declared)

    async def reopen(self) -> None:
        await self._do_async(SemaphoreFile.reopen)

    def reopen_sync(self) -> None:
        self._do(SemaphoreFile.reopen)
