"""The blocking twins of RedisSemaphore's coroutines, for plain threads.

Each runs its coroutine in the keeper's loop and waits. Nothing else is here: what
is asked of the server, and what the answer means, is the coroutines' business.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from slotwise._core.arguments import UNSET, Unset
from slotwise._core.limit import EXIT_LIMIT, refuse_to_block_a_loop
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats, acquisition_id_of
from slotwise._core.semaphore import Semaphore
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._shared_client import NameRecord, SharedClient

T = TypeVar("T")


class BlockingTwins(Semaphore):
    """What a semaphore of one server offers to threads that run no event loop."""

    __slots__ = ()

    _has_a_server = True

    @abstractmethod
    def _attached(self) -> tuple[SharedClient, NameRecord]:
        """What this process shares."""

    @abstractmethod
    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
    ) -> AcquisitionResult: ...

    @abstractmethod
    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None: ...

    @abstractmethod
    async def _release_on_exit(
        self, acquired: AcquisitionResult, at_most: float = EXIT_LIMIT
    ) -> None: ...

    @abstractmethod
    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool: ...

    @abstractmethod
    async def holders(self) -> list[Claimant]: ...

    @abstractmethod
    async def waiters(self) -> list[Claimant]: ...

    # ---------------------------------------------------------------- taking

    def acquire_sync(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
    ) -> AcquisitionResult:
        refuse_to_block_a_loop("acquire_sync()")
        taken: list[RedisAcquisition] = []

        async def take() -> AcquisitionResult:
            return _without_task(await self.acquire(slots, timeout=timeout, label=label), taken)

        return self._acquire_blocking(take(), taken)

    def try_acquire_sync(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None:
        """Like `try_acquire`; blocks for one round trip to the server."""
        taken: list[RedisAcquisition] = []

        async def take() -> AcquisitionResult | None:
            acquired = await self.try_acquire(slots, label=label)
            return None if acquired is None else _without_task(acquired, taken)

        return self._acquire_blocking(take(), taken)

    def _acquire_blocking(self, taking: Coroutine[Any, Any, T], taken: list[RedisAcquisition]) -> T:
        """Like `_in_keeper`; a slot that came as the thread was interrupted goes back."""
        try:
            return self._run_blocking(taking)
        except BaseException:
            shared, _ = self._attached()
            shared.heartbeat_thread.release_soon(taken)
            raise

    # ---------------------------------------------------------------- giving

    def release_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `release`; blocks for one round trip to the server.

        A thread that is interrupted meanwhile has released all the same.
        """
        shared, _ = self._attached()
        released = acquisition_id_of(acquisition_id)
        shared.pending_cancels.pop(released, None)
        return shared.heartbeat_thread.run_to_completion(lambda: self.release(released))

    def _release_on_exit_sync(
        self, acquired: AcquisitionResult, at_most: float = EXIT_LIMIT
    ) -> None:
        shared, _ = self._attached()
        shared.pending_cancels.pop(acquired.acquisition_id, None)
        shared.heartbeat_thread.run_to_completion(lambda: self._release_on_exit(acquired, at_most))

    def kick_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `kick`; blocks for one round trip to the server."""
        return self._run_blocking(self.kick(acquisition_id))

    # ------------------------------------------------------ looking, steering

    def locked_sync(self) -> bool:
        return self._run_blocking(self._locked())

    def stats_sync(self) -> SemaphoreStats:
        return self._run_blocking(self.stats())

    def holders_sync(self) -> list[Claimant]:
        """Like `holders`."""
        return self._run_blocking(self.holders())

    def waiters_sync(self) -> list[Claimant]:
        """Like `waiters`."""
        return self._run_blocking(self.waiters())

    def resize_sync(self, value: int) -> None:
        self._run_blocking(self.resize(value))

    def close_sync(self) -> None:
        self._run_blocking(self.close())

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        self._run_blocking(self.close_everywhere(reason))

    def reopen_sync(self) -> None:
        self._run_blocking(self.reopen())

    def _run_blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        shared, _ = self._attached()
        return shared.heartbeat_thread.run(coroutine)


def _without_task(acquired: AcquisitionResult, taken: list[RedisAcquisition]) -> AcquisitionResult:
    """Note what was taken for a thread: the task that took it is nobody's work."""
    assert isinstance(acquired, RedisAcquisition)
    acquired.task = None
    taken.append(acquired)
    return acquired
