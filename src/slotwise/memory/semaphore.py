"""MemorySemaphore: the public face of the memory driver.

It finds the tracker behind its name, and waits. Who gets a slot is decided by
the ledger in the tracker; the way past everything, the quick lane, is here for
``async with semaphore:`` and in `_lease` for everything else.
"""

from __future__ import annotations

import asyncio
from _thread import LockType
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from logging import INFO
from types import TracebackType
from typing import Any, ClassVar, cast

from slotwise import _clock
from slotwise._arguments import (
    UNSET,
    Unset,
    check_count,
    check_flag,
    check_name,
    check_seconds,
)
from slotwise._ledger import Ledger
from slotwise.memory import _log
from slotwise.memory._lease import Lease, key_of, next_key
from slotwise.memory._log import perhaps_wanted
from slotwise.memory._registry import registry
from slotwise.memory._tracker import Tracker, condemned, deliver, lock, unlock
from slotwise.memory._wakers import Waker, closed_door
from slotwise.semaphore import Semaphore, block_not_entered, describe, refuse_to_block_a_loop
from slotwise.values import AcquisitionResult, SemaphoreStats

# What an instance has that is not attached to its name: nothing can be taken from it.
_DETACHED = Tracker(None, Ledger(1))
_DETACHED.retire()


class MemorySemaphore(Semaphore):
    """A semaphore for the tasks and threads of this process.

    Instances of one name are one semaphore, in all threads and event loops.
    ``name=None`` makes a private one.

    Args:
        value: how many slots there are.
        name: what instances share it by.
        max_acquire_time: the longest wait in seconds; None waits for ever.
        ttl: the longest hold in seconds; then the slot is freed, whoever has it.
        cancel_task_after_ttl: also cancel the task that took the slot.
    """

    __slots__ = (
        "_cancel_task_after_ttl",
        "_lane",
        "_ledger",
        "_max_acquire_time",
        "_name",
        "_numbers",
        "_tracker",
        "_ttl",
        "_value",
    )

    driver: ClassVar[str] = "memory"

    def __init__(
        self,
        *,
        value: int,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
    ) -> None:
        super().__init__()
        self._value = check_count("value", value)
        self._name = check_name(name)
        self._max_acquire_time = check_seconds("max_acquire_time", max_acquire_time)
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        # The slot numbers of `async with` blocks of this instance that took the
        # quick lane. Nobody sees which block has which, so they need no claims.
        self._numbers: list[int] = []
        if self._name is None:
            self._attach(Tracker(None, Ledger(self._value)))
        else:
            self._attach(_DETACHED)
            lock.acquire()
            try:
                known = registry.get(self._name)
                if known is None or self._value in known.values:
                    self._attach(registry.tracker_for(self._name, self._value))
            finally:
                unlock()

    def _attach(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._ledger = tracker.ledger
        if self._ttl is not None:
            tracker.ledger.timed()
        # A block with a ttl needs a claim that can expire.
        self._lane = tracker.ledger if self._ttl is None else _DETACHED.ledger

    def _attached(self) -> Tracker:
        """The living tracker behind the name, *with the lock held*.

        Look-up and request are one step under the lock: a tracker cannot be
        forgotten in between.
        """
        if self._tracker.retired:
            assert self._name is not None  # private trackers never retire
            self._attach(registry.tracker_for(self._name, self._value))
        return self._tracker

    def _known(self) -> Tracker | None:
        """The tracker behind the name, whatever its value, if there is one; lock held."""
        if self._name is not None and self._tracker.retired:
            return registry.get(self._name)
        return self._tracker

    def __repr__(self) -> str:
        return f"<MemorySemaphore {describe(self)} value={self.value}>"

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def value(self) -> int:
        return self._value if self._tracker.retired else self._ledger.value

    # ---------------------------------------------------------------- taking

    async def acquire(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET
    ) -> AcquisitionResult:
        lease = self.cm(slots, timeout=timeout)
        lease.key = next_key()
        if not lease.take():
            await self._acquire(lease)
        return lease

    def acquire_sync(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET
    ) -> AcquisitionResult:
        return self.cm(slots, timeout=timeout).__enter__()

    async def try_acquire(self, slots: int = 1) -> AcquisitionResult | None:
        return self.try_acquire_sync(slots)

    def try_acquire_sync(self, slots: int = 1) -> AcquisitionResult | None:
        lease = self.cm(slots)
        lease.key = next_key()
        if lease.take():
            return lease
        started = self._begin(lease)
        lease.task = self._task_to_cancel()
        with lock:
            granted = self._attached().try_request(lease)
        if not granted:
            return None
        _log.acquired(lease, self._tracker, started)
        return lease

    def cm(self, slots: int = 1, *, timeout: float | Unset | None = UNSET) -> Lease:
        if slots != 1 or timeout is not UNSET:
            check_count("slots", slots)
        if timeout is UNSET:
            return Lease(self, slots, self._max_acquire_time)
        return Lease(self, slots, check_seconds("timeout", timeout, zero=True))

    async def _acquire(self, lease: Lease) -> None:
        """Get what the quick lane did not give, waiting if need be."""
        started = self._begin(lease) if perhaps_wanted(INFO, True) else None
        lease.task = self._task_to_cancel()
        if not self._request(lease, asyncio.get_running_loop().create_future):
            try:
                await cast("asyncio.Future[None]", lease.waker)
            except GeneratorExit:  # collected together with its event loop
                self._tracker.abandon(lease)
                raise
            except BaseException:
                self._tracker.withdraw(lease)
                raise
            if lease.failure is not None:
                raise lease.failure
        if started is not None:
            _log.acquired(lease, self._tracker, started)

    def _acquire_sync(self, lease: Lease) -> None:
        """Like `_acquire`, for a thread."""
        started = self._begin(lease) if perhaps_wanted(INFO, True) else None
        lease.task = None
        if not self._request(lease, closed_door):
            try:
                cast("LockType", lease.waker).acquire()
            except BaseException:
                self._tracker.withdraw(lease)
                raise
            if lease.failure is not None:
                raise lease.failure
        if started is not None:
            _log.acquired(lease, self._tracker, started)

    def _request(self, lease: Lease, make_waker: Callable[[], Waker]) -> bool:
        """Ask the ledger; True if the lease has its slots, False if it has to wait."""
        lock.acquire()
        try:
            granted = self._attached().request(lease, make_waker)
        finally:
            unlock()
        if not granted:
            return False
        if granted[-1] is lease:
            granted.pop()
            deliver(granted)
            return True
        deliver(granted)
        return False

    def _begin(self, lease: Lease) -> float:
        _log.acquiring(lease, self._name)
        return _clock.now()

    def _task_to_cancel(self) -> asyncio.Task[Any] | None:
        """Whom the end of the ttl concerns: the running task, if that was asked for."""
        if self._cancel_task_after_ttl and asyncio._get_running_loop() is not None:
            return asyncio.current_task()
        return None

    # ---------------------------------------------------------------- giving

    async def release(self, acquisition: str | AcquisitionResult) -> bool:
        return self.release_sync(acquisition)

    def release_sync(self, acquisition: str | AcquisitionResult) -> bool:
        if isinstance(acquisition, AcquisitionResult):
            acquisition = acquisition.acquisition_id
        elif not isinstance(acquisition, str):
            raise TypeError(
                f"release takes an acquisition_id or an AcquisitionResult, not {acquisition!r}"
            )
        key = key_of(acquisition)
        if key is None:
            _log.unknown_id(acquisition, self._name)
            return False
        if self._tracker.retired:
            with lock:
                known = self._known()
            ledger = self._ledger if known is None else known.ledger
        else:
            ledger = self._ledger
        lease = ledger.holders.get(key)
        # Named semaphores share their table of holders: is this one of ours?
        if lease is None or lease.semaphore._ledger is not ledger:
            condemned.pop(key, None)
            return False
        return lease.semaphore._tracker.release(lease)

    # ------------------------------------------------- `async with semaphore:`

    async def __aenter__(self) -> None:
        ledger = self._lane
        if not ledger.attention and not perhaps_wanted(INFO, True):
            try:
                self._numbers.append(heappop(ledger.free))
            except IndexError:
                pass
            else:
                return
        lease = Lease(self, 1, self._max_acquire_time)
        lease.key = next_key()
        await self._acquire(lease)
        self._enter_slowly(lease)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._blocks:
            try:
                number = self._numbers.pop()
            except IndexError:
                pass
            else:
                ledger = self._ledger
                heappush(ledger.free, number)
                tracker = self._tracker
                tracker.last_used = _clock.glance.time
                if ledger.attention:
                    tracker.settle()
                return
        self._exit_slowly()

    def __enter__(self) -> None:
        refuse_to_block_a_loop("'with'")
        ledger = self._lane
        if not ledger.attention and not perhaps_wanted(INFO, True):
            try:
                self._numbers.append(heappop(ledger.free))
            except IndexError:
                pass
            else:
                return
        lease = Lease(self, 1, self._max_acquire_time)
        lease.key = next_key()
        self._acquire_sync(lease)
        self._enter_slowly(lease)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exit_slowly()

    def _enter_slowly(self, lease: Lease) -> None:
        """Remember a block that had to ask for its slot."""
        if lease.ttl is None and not perhaps_wanted(INFO, True):
            # The slot stays, its claim goes: nobody knows an id to release it by.
            del self._ledger.holders[lease.key]
            self._numbers.append(lease._slot_number)
        else:
            self._enter_block(lease)

    def _exit_slowly(self) -> None:
        """Leave a block: the caller's latest with a claim, or else one without."""
        lease = self._leave_block() if self._blocks else None
        if lease is not None:
            self._tracker.release(cast("Lease", lease))
            return
        try:
            number = self._numbers.pop()
        except IndexError:
            raise block_not_entered(self) from None
        heappush(self._ledger.free, number)
        self._tracker.last_used = _clock.glance.time
        if self._ledger.attention:
            self._tracker.settle()

    # ------------------------------------------------------ looking, steering

    async def locked(self) -> bool:
        return self.locked_sync()

    def locked_sync(self) -> bool:
        with lock:
            tracker = self._known()
            if tracker is None:
                return False
            ledger = tracker.ledger
            return ledger.closed or bool(ledger.waiting) or ledger.in_use >= ledger.value

    async def stats(self) -> SemaphoreStats:
        return self.stats_sync()

    def stats_sync(self) -> SemaphoreStats:
        with lock:
            tracker = self._known()
            return SemaphoreStats(0, self._value) if tracker is None else tracker.snapshot()

    @classmethod
    async def get_acquired_stats(
        cls, names: Iterable[str] | None = None, limit: int = 100
    ) -> dict[str, SemaphoreStats]:
        """The statistics of the named semaphores of this process, fullest first.

        Idle ones are left out unless they are asked for by name.

        Args:
            names: only these; unknown ones are left out.
            limit: at most so many.
        """
        return cls.get_acquired_stats_sync(names, limit)

    @classmethod
    def get_acquired_stats_sync(
        cls, names: Iterable[str] | None = None, limit: int = 100
    ) -> dict[str, SemaphoreStats]:
        """Like `get_acquired_stats`."""
        if isinstance(names, str):
            raise TypeError(f"names must be several names, not the str {names!r}")
        return registry.stats(names, check_count("limit", limit))

    async def resize(self, value: int) -> None:
        self.resize_sync(value)

    def resize_sync(self, value: int) -> None:
        check_count("value", value)
        lock.acquire()
        try:
            tracker = self._known() or self._attached()
            ended = tracker.resize(value, self._value)
            if tracker is not self._tracker:
                self._attach(tracker)
        finally:
            unlock()
        deliver(ended)

    async def close(self) -> None:
        self.close_sync()

    def close_sync(self) -> None:
        lock.acquire()
        try:
            tracker = self._known() or self._attached()
            ended = tracker.close()
            if tracker is not self._tracker:
                self._attach(tracker)
        finally:
            unlock()
        deliver(ended)
