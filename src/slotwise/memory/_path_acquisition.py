"""MemoryPathAcquisition: one acquisition of MemoryPaths, which is its own context manager.

One object is the context manager, the ledger's claim and the caller's result,
as a MemoryAcquisition is, and for the same reason.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Self, cast

from slotwise._core import messages
from slotwise._core.outcomes import asked_pauses
from slotwise._core.paths import keys_by_name
from slotwise._core.trio_run import running_trio
from slotwise._ledger.path_nodes import Node, Path, PathClaim
from slotwise._ledger.rated_lane import give_at_once, take_at_once
from slotwise._wait import clock
from slotwise._wait.at_once import DONE
from slotwise._wait.section import lock, postponed, run_postponed, section
from slotwise._wait.wakers import Waker
from slotwise.memory._base_acquisition import BaseAcquisition
from slotwise.memory._ids import next_key
from slotwise.memory._unfilled import unfilled

if TYPE_CHECKING:
    from slotwise._core.events import Pause
    from slotwise.memory._paths import MemoryPaths


class MemoryPathAcquisition(BaseAcquisition, PathClaim):
    """One slot of every tier, from its request to its end; made by `MemoryPaths.cm` alone."""

    __slots__ = (
        *("failure", "label", "path", "paths", "since", "timeout", "waiting_since"),
        *("waker", "weight"),
    )

    key: int | None
    paths: MemoryPaths
    path: Path
    since: float  # when it began to wait, then when it was granted; not by the quick lane
    timeout: float | None  # the longest wait
    label: str  # what the slots are for; not set without one
    waiting_since: float  # set if it had to wait
    waker: Waker  # set once it waits
    failure: Exception | None  # why the wait ended without a grant
    weight: float  # of its key; set once it is asked for

    @property
    def share_weight(self) -> float:
        """The weight of its key, where keys take turns."""
        return getattr(self, "weight", 1.0)

    def settle(self, **costs: int) -> Awaitable[None]:
        self.paths.check_costs(costs)
        if self.key is None:
            raise messages.context_not_yet_entered(self._title)
        self.paths.charge(self.key, costs)
        return DONE

    def _keys(self) -> dict[str, str]:
        return keys_by_name(self.paths._tracker.specs, self.path)

    @property
    def _title(self) -> str:
        return self.paths._title

    def _pauses(self) -> Sequence[Pause]:
        """Return what its service has asked to pause, for events."""
        return asked_pauses(self, self.paths._specs, cast("Any", self.path))

    def _wait(self) -> Coroutine[Any, Any, None]:
        return self.paths._acquire(self)

    # -------------------------------------------------------- the quick lane

    def take(self) -> bool:
        """Take what is free by the quick lane; False if the tracker has to be asked."""
        lane = self.paths._lane
        if lane.attention or lane.woken:
            return False
        taken: list[Node] = []
        try:
            for nodes, key in zip(lane.tables, self.path):  # noqa: B905 - it costs, and was checked
                node = nodes[key]
                number = heappop(node.free)
                taken.append(node)
        except BaseException as nothing_free:
            if taken:
                lane.undo(taken, number)
            if isinstance(nothing_free, LookupError):
                return False
            raise  # raised by a signal handler
        if lane.closed:
            # Closed meanwhile: it may have taken what was given back after the close.
            lane.undo(taken, number)
            return False
        self.nodes = taken
        self._slot_number = number
        lane.holders[self.key] = self
        return True

    def give(self) -> bool:
        """Give back what it holds; False if it has ended before."""
        tracker = self.paths._tracker
        # The pop decides between this caller, others that release the same
        # acquisition, and the end of its ttl: exactly one of them frees the slots.
        if tracker.holders.pop(self.key, None) is None:
            tracker.keep_task(self.key)
            return False
        if tracker.attention or self.ttl is not None:
            tracker.take_back(self)
            return True
        now = clock.now()
        number = self._slot_number
        for node in self.nodes:
            node.used = now
            heappush(node.free, number)
        if len(tracker.tables[0]) > tracker.roomy or tracker.attention:
            tracker.look_around(self.nodes)
        return True

    def end(self) -> bool:
        """Like `give`, for somebody other than its holder."""
        return self.give()

    # --------------------------------------------------- the context manager

    async def __aenter__(self) -> Self:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise messages.context_reused(self._title)
        self.key = key
        # `take`, inlined: the call would cost a tenth of the whole. Compared with it by
        # tests/tiers/test_quick_lane_copies.py, as `__aexit__` is with `give`.
        lane = self.paths._lane
        if not lane.attention and not lane.woken:
            taken: list[Node] = []
            try:
                for nodes, part in zip(lane.tables, self.path):  # noqa: B905 - as in `take`
                    node = nodes[part]
                    number = heappop(node.free)
                    taken.append(node)
            except BaseException as nothing_free:
                if taken:
                    lane.undo(taken, number)
                if not isinstance(nothing_free, LookupError):
                    raise
            else:
                if not lane.closed:
                    self.nodes = taken
                    self._slot_number = number
                    lane.holders[key] = self
                    return self
                lane.undo(taken, number)
        # `MemoryPaths._acquire`, inlined: one coroutine less that a wake-up goes through.
        paths = self.paths
        try:
            loop = get_running_loop()
        except RuntimeError:
            loop = running_trio()
        if paths._request(self, loop.create_future):
            if paths._tracker.woken.any_of(loop):
                await paths._let_woken_pass(self)
            return self
        waker: Any = self.waker
        try:
            clock.require_timers()
            await waker
        except BaseException:
            paths._tracker.withdraw(self)
            raise
        finally:
            paths._tracker.woken.discard(waker)
        if self.failure is not None:
            raise self.failure
        return self

    def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> Coroutine[Any, Any, None]:
        # `give`, inlined for the same reason.
        tracker = self.paths._tracker
        try:
            del tracker.holders[self.key]
        except KeyError:
            if self.key is None:
                raise messages.context_not_entered(self._title) from None
            tracker.keep_task(self.key)
            return DONE
        if tracker.attention or self.ttl is not None:
            tracker.take_back(self)
        else:
            now = clock.now()
            number = self._slot_number
            for node in self.nodes:
                node.used = now
                heappush(node.free, number)
            if len(tracker.tables[0]) > tracker.roomy or tracker.attention:
                tracker.look_around(self.nodes)
        return DONE


class TimedMemoryPathAcquisition(MemoryPathAcquisition):
    """One slot of every tier, with a ttl; never by the quick lane."""

    __slots__ = ("task",)

    task: asyncio.Task[Any] | None  # to cancel when the ttl ends; not set if none

    __aenter__ = BaseAcquisition.__aenter__  # not that of the quick lane


class LargeMemoryPathAcquisition(TimedMemoryPathAcquisition):
    """Several slots of at least one tier, perhaps with a ttl; never by the quick lane."""

    __slots__ = ("head_start", "needs", "ranges")

    head_start: int
    needs: tuple[int, ...] | None
    ranges: Sequence[range]

    def take(self) -> bool:
        tracker = self.paths._tracker
        if not tracker.is_rated or self.ttl is not None or tracker.woken:
            return False
        with lock:  # `exclusive`, inlined
            if section.busy:
                return False  # `_wait` raises the error
            section.busy = True
            try:
                self.since = now = clock.now()
                taken = take_at_once(tracker, self, self.path, now)
                if taken and tracker.name is not None:
                    unfilled[tracker.name] = tracker
            finally:
                section.busy = False
        if postponed:
            run_postponed()
        return taken

    def give(self) -> bool:
        tracker = self.paths._tracker
        if tracker.holders.pop(self.key, None) is None:
            tracker.keep_task(self.key)
            return False
        given = False
        if tracker.is_rated:
            with lock:  # `exclusive`, inlined
                if not section.busy:
                    section.busy = True
                    try:
                        given = give_at_once(tracker, self, self.path, clock.now())
                    finally:
                        section.busy = False
            if postponed:
                run_postponed()
        if not given:
            tracker.take_back(self)
        return True

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        # `BaseAcquisition.__exit__`, inlined.
        if self.key is None:
            raise messages.context_not_entered(self._title)
        try:
            self.give()
        except BaseException:
            self.leave_interrupted()
            raise
