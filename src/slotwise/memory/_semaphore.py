"""MemorySemaphore: the public class of the memory driver.

It checks arguments; its `MemoryBackend` takes slots, waits for them and gives them back. The
shortcut past the backend, the quick lane, is inlined here for ``async with semaphore:``.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Coroutine, Iterable
from functools import partial
from heapq import heappop, heappush
from logging import DEBUG
from types import TracebackType
from typing import Any, cast

from slotwise._core.adaptive import Adaptive, Outcome
from slotwise._core.arguments import (
    UNSET,
    Shed,
    Unset,
    WaitOrReplace,
    check_count,
    check_label,
    check_names,
    check_timeout,
    check_value,
)
from slotwise._core.at_once import DONE, known
from slotwise._core.limit import AcquisitionContext
from slotwise._core.messages import display
from slotwise._core.paths import SEMAPHORE_PATH, semaphore_spec
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore, semaphore_needs
from slotwise._core.stats import SemaphoreStats
from slotwise._core.trio_run import running_trio
from slotwise._core.twins import refuse_to_block_a_loop, run_here
from slotwise._wait import clock
from slotwise._wait.section import section
from slotwise.memory import _line
from slotwise.memory._acquisition import BlockWait, MemoryAcquisition
from slotwise.memory._backend import MemoryBackend
from slotwise.memory._log import logged, perhaps_wanted
from slotwise.memory._registry import registry

# Compared by identity, which is quick and tells them from True and 1.0.
_ONE = 1
_WAIT = "wait"
_NO_PRIORITY = 0


class MemorySemaphore(Semaphore):
    """A semaphore for the tasks and threads of this process.

    Instances of one name are one semaphore, in all threads and event loops.
    ``name=None`` makes a private one.

    Args:
        value: how many slots there are; or an `Adaptive`, which finds the number.
        name: the name that instances share.
        max_acquire_time: the longest wait in seconds; None waits forever.
        ttl: the longest hold in seconds; then the slot is freed, whoever has it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        max_waiting: how many may wait; beyond it, newcomers that would have to wait get a
            LimitFull. None lets any number wait.
        shed: "deadline" also refuses callers whose timeout is shorter than the expected wait
            (see `Limit.estimate`); None, the default, refuses nobody for that.
    """

    __slots__ = ("_backend", "_numbers", "_waits_in_line")

    _scope = "memory"

    _backend: MemoryBackend

    def __init__(
        self,
        value: int | Adaptive,
        *,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        max_waiting: int | None = None,
        shed: Shed | None = None,
    ) -> None:
        super().__init__(name, max_acquire_time, ttl, cancel_task_after_ttl, max_waiting, shed)
        self._backend = MemoryBackend(
            (semaphore_spec(value if isinstance(value, Adaptive) else check_value(value)),),
            name=self._name,
            ttl=self._ttl,
            cancel_task_after_ttl=self._cancel_task_after_ttl,
            overload=self._overload,
        )
        # Whether blocks may wait in the tracker's line, where nobody counts or times them.
        self._waits_in_line = max_acquire_time is None and self._overload is None
        # The slot numbers of blocks of this instance that need no
        # claim. Nobody sees which block has which, so a stack will do.
        self._numbers: list[int] = []

    def __repr__(self) -> str:
        return f"<MemorySemaphore {display(self._name)} value={self.value}>"

    @property
    def _base(self) -> type[MemorySemaphore]:
        return MemorySemaphore

    def _arguments(self) -> dict[str, Any]:
        [spec] = self._backend._specs
        return {"value": spec.adaptive or spec.slots, **super()._arguments()}

    @property
    def value(self) -> int:
        """How many slots there are."""
        return self._backend.value

    def cm(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> AcquisitionContext:
        seconds = self._max_acquire_time if timeout is UNSET else check_timeout(timeout, None)
        backend, needs = self._backend, None
        if slots is not _ONE or on_full is not _WAIT or priority is not _NO_PRIORITY:
            needs = semaphore_needs(slots, on_full, priority)
        elif label is None and backend._is_plain:  # as `MemoryBackend.cm` does, without the call
            acquisition: MemoryAcquisition = MemoryAcquisition()
            acquisition.key = None
            acquisition.backend = backend
            acquisition.timeout = seconds
            return acquisition
        return backend.cm(SEMAPHORE_PATH, seconds, check_label(label), needs)

    hold = cm

    def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> Coroutine[Any, Any, bool]:
        # Not a coroutine that does it once it is awaited: one that nobody awaits has released, too.
        return known(self._backend.end(acquisition_id, outcome))

    # ------------------------------------------------- `async with semaphore:`

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        backend = self._backend
        ledger = backend.lane
        try:  # `_quick_lane.take_one`, inlined
            if backend._is_plain and not (
                ledger.attention or ledger.line or backend.tracker.woken or logged[DEBUG]
            ):
                number = heappop(backend.free)
                if not ledger.attention:
                    self._numbers.append(number)
                    return DONE
                backend.tracker.undo(backend.nodes, number)
        except LookupError:
            pass
        return self._enter()

    async def _enter(self) -> None:
        """Enter a block that the quick lane didn't let in."""
        backend = self._backend
        ledger, tracker = backend.lane, backend.tracker
        try:
            has_to_ask = not backend._is_plain or ledger.attention or logged[DEBUG]
        except KeyError:  # it isn't known whether anything is logged
            has_to_ask = True
        if not has_to_ask:
            future: Future[int] | None = None
            node = backend.nodes[0]
            try:
                loop = get_running_loop()
            except RuntimeError:
                loop = running_trio()
            if not ledger.line and (node.free or node.circulating < node.value):
                number = _line.take_another(tracker, loop)
                if number:
                    self._numbers.append(number)
                    return
            may_wait = self._waits_in_line and clock.timekeeper.failure is None
            if may_wait and _line.at_home(tracker, loop):
                future = loop.create_future()
            if future is not None:
                try:
                    ledger.line.append(future)
                    # The last check after queueing, in the ledger's order. `busy` comes first: a
                    # thread in the section may have numbers in hand that it puts back; one that
                    # enters later sees the line before it takes any.
                    if (
                        section.busy
                        or node.free
                        or node.circulating < node.value
                        or loop is not tracker.home.loop
                        or ledger.attention
                    ):
                        _line.join(tracker, ledger, future)
                        if future.done():
                            await tracker.woken.let_pass()
                    number = await future
                except BaseException:
                    _line.leave(tracker, future)
                    raise
                if tracker.woken:
                    tracker.woken.discard(future)
                if number:
                    self._numbers.append(number)
                    return
        if self._blocks_have_claims():
            self._enter_block(await self.acquire())
        else:
            wait = BlockWait(backend, self._max_acquire_time)
            await backend.get(wait)
            self._numbers.append(wait._slot_number)

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        if not self._blocks:
            try:
                number = self._numbers.pop()
            except IndexError:
                pass
            else:
                backend = self._backend
                ledger = backend.lane
                if ledger.line or ledger.attention:  # `_quick_lane.give_one`, inlined
                    backend.tracker.hand_over(number)
                else:
                    heappush(backend.free, number)
                    if ledger.line or ledger.attention:
                        backend.tracker.look_around(backend.nodes)
                return DONE
        self._exit(exc_type)
        return DONE

    def __enter__(self) -> None:
        refuse_to_block_a_loop("'with'")
        backend = self._backend
        ledger = backend.lane
        try:  # `_quick_lane.take_one`, inlined
            if backend._is_plain and not (
                ledger.attention or ledger.line or backend.tracker.woken or logged[DEBUG]
            ):
                number = heappop(backend.free)
                if not ledger.attention:
                    self._numbers.append(number)
                    return
                backend.tracker.undo(backend.nodes, number)
        except LookupError:
            pass
        if self._blocks_have_claims():
            self._enter_block(self.acquire_sync())
        else:
            wait = BlockWait(backend, self._max_acquire_time)
            run_here(partial(backend.get, wait))
            self._numbers.append(wait._slot_number)

    def __exit__(
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
                backend = self._backend
                ledger = backend.lane
                if ledger.line or ledger.attention:  # `_quick_lane.give_one`, inlined
                    backend.tracker.hand_over(number)
                else:
                    heappush(backend.free, number)
                    if ledger.line or ledger.attention:
                        backend.tracker.look_around(backend.nodes)
                return
        self._exit(exc_type)

    def _blocks_have_claims(self) -> bool:
        """Whether a block must be known by an id: to expire, or to be logged."""
        return not self._backend._is_plain or perhaps_wanted(DEBUG, True)

    def _exit(self, exc_type: type[BaseException] | None) -> None:
        """Leave a block: the caller's latest with a claim, or else one without."""
        acquisition = self._own_block() if self._blocks else None
        if acquisition is None:
            try:
                number = self._numbers.pop()
            except IndexError:
                acquisition = self._leave_block()
        if acquisition is not None:
            acquisition._leave_with(exc_type)
            self._backend.give(cast("MemoryAcquisition", acquisition))
            return
        self._backend.tracker.hand_over(number)

    # ------------------------------------------------------ looking, steering

    @classmethod
    async def get_acquired_stats(
        cls, names: Iterable[str] | None = None, limit: int = 100
    ) -> dict[str, SemaphoreStats]:
        """Return the statistics of the named semaphores of this process, fullest first.

        Idle ones are left out unless they are asked for by name.

        Args:
            names: only these; unknown ones are left out.
            limit: the largest number of semaphores to return.
        """
        return cls.get_acquired_stats_sync(names, limit)

    @classmethod
    def get_acquired_stats_sync(
        cls, names: Iterable[str] | None = None, limit: int = 100
    ) -> dict[str, SemaphoreStats]:
        """Like `get_acquired_stats`."""
        check_names(names)
        return registry.stats(names, check_count("limit", limit))
