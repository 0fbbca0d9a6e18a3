"""MemoryAcquisition: one acquisition of a MemorySemaphore, which is its own context manager.

One object is the ``cm()``, the ledger's claim and the caller's result, because making two would
cost more than the acquisition itself. It takes slots by the quick lane where it can; everything
that has to wait goes to the semaphore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING, Any, Self

from slotwise._core.limit import AcquisitionContext
from slotwise._core.messages import context_reused
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.results import AcquisitionResult
from slotwise._ledger import SlotClaim
from slotwise._wait import clock
from slotwise._wait.at_once import DONE
from slotwise._wait.clock import glance
from slotwise._wait.wakers import Waker
from slotwise.memory import _quick_lane
from slotwise.memory._context import MemoryContext
from slotwise.memory._ids import next_key
from slotwise.memory._log import logged
from slotwise.memory._waiting import running_task

if TYPE_CHECKING:
    from slotwise._core.events import Pause
    from slotwise.memory._semaphore import MemorySemaphore


class MemoryAcquisition(MemoryContext, SlotClaim, AcquisitionResult, AcquisitionContext):
    """One slot of a MemorySemaphore, from ``cm()`` or ``acquire()`` to its end."""

    __slots__ = ("arrived", "failure", "key", "semaphore", "since", "timeout", "waker")

    # What only a GeneralMemoryAcquisition may have otherwise.
    slots: int = 1
    ttl: float | None = None
    label: str | None = None
    task: asyncio.Task[Any] | None = None

    key: int | None  # None until it is entered
    semaphore: MemorySemaphore
    # When it began to wait, then when it was granted; not set if it was granted by the
    # quick lane, which doesn't look at the clock.
    since: float
    timeout: float | None  # the longest wait
    waker: Waker  # set once it waits
    failure: Exception | None  # why the wait ended without a grant

    @property
    def _title(self) -> str:
        return self.semaphore._title

    def _pauses(self) -> Sequence[Pause]:
        """Return what its service has asked to pause, for events."""
        return asked_pauses(self._outcomes)

    # --------------------------------------------------------------- its life

    def take(self) -> bool:
        """Take a slot by the quick lane; False if the semaphore has to be asked."""
        tracker = self.semaphore._tracker
        number = _quick_lane.take(tracker)
        if not number:
            return False
        self._slot_number = number
        tracker.holders[self.key] = self
        return True

    def wait(self) -> Coroutine[Any, Any, None]:
        """Get what the quick lane did not give, waiting if need be."""
        return self.semaphore._acquire(self)

    def give(self) -> bool:
        """Give back what it holds; False if it has ended before."""
        tracker = self.semaphore._tracker
        # The deletion decides between this caller, others that release the same
        # acquisition, and the end of its ttl: exactly one of them frees the slot.
        try:
            if logged[DEBUG]:
                return tracker.take_back(self)
            del tracker.holders[self.key]
        except KeyError:  # it has ended before, or it isn't known whether anything is logged
            return tracker.take_back(self)
        _quick_lane.give(tracker, self._slot_number)
        return True

    # --------------------------------------------------- the context manager

    async def __aenter__(self) -> Self:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise context_reused(self._title)
        self.key = key
        tracker = self.semaphore._tracker
        try:  # `_quick_lane.take`, inlined
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._slot_number = heappop(tracker.free)
                tracker.holders[key] = self
                return self
        except LookupError:
            pass
        await self.semaphore._acquire(self)
        return self

    def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> Coroutine[Any, Any, None]:
        tracker = self.semaphore._tracker
        try:
            if not logged[DEBUG]:
                del tracker.holders[self.key]
                if tracker.line or tracker.attention:  # `_quick_lane.give`, inlined
                    tracker.hand_over(self._slot_number)
                else:
                    tracker.last_used = glance.time
                    heappush(tracker.free, self._slot_number)
                    if tracker.line or tracker.attention:
                        tracker.look_after_waiters()
                return DONE
        except KeyError:  # it has ended before, was never entered, or is perhaps logged
            pass
        self.__exit__(exc_type, exc, traceback)
        return DONE


class GeneralMemoryAcquisition(MemoryAcquisition):
    """Any slots of a MemorySemaphore: several, or with a ttl, a label, a head start, an outcome.

    By the quick lane only if it is a single slot, in its turn; the rule isn't inlined here.
    """

    __slots__ = (
        *("_outcomes", "head_start", "label", "ranges", "replaced", "replaces", "slots", "task"),
        "ttl",
    )

    _outcomes: Outcomes | None
    head_start: int
    label: str | None
    ranges: Sequence[range]
    replaced: Sequence[MemoryAcquisition]  # the holders that it has replaced
    replaces: bool
    slots: int
    task: asyncio.Task[Any] | None  # to cancel when the ttl ends
    ttl: float | None

    def take(self) -> bool:
        if self.slots != 1 or self.head_start or self.replaces:
            return False
        semaphore = self.semaphore
        tracker = semaphore._tracker
        self.since = since = clock.now()  # before anybody can see that it holds a slot
        number = _quick_lane.take(tracker)
        if not number:
            return False
        self._slot_number = number
        tracker.holders[self.key] = self
        if self.ttl is not None:
            if semaphore._cancel_task_after_ttl:
                self.task = running_task()
            deadline = since + self.ttl
            tracker.deadlines.young[self.key] = deadline  # type: ignore[union-attr]
            if deadline < tracker.alarm:
                tracker.arm(deadline)
        return True

    def give(self) -> bool:
        tracker = self.semaphore._tracker
        if self.slots != 1 or self._outcomes is not None:
            ended = tracker.take_back(self)
            self.semaphore._tell_changes()
            return ended
        if not super().give():
            return False
        if self.ttl is not None:
            tracker.forget_deadline(self.key)
        return True

    # Not the copies of the quick lane.
    __aenter__ = MemoryContext.__aenter__
    __aexit__ = MemoryContext.__aexit__


class BlockWait(MemoryAcquisition):
    """The wait of a block, which holds its slot without a claim, outside the line."""

    __slots__ = ()

    named = False

    def __init__(self, semaphore: MemorySemaphore, timeout: float | None) -> None:
        self.key = next_key()
        self.semaphore = semaphore
        self.timeout = timeout
        self._slot_number = 0  # until it is granted
