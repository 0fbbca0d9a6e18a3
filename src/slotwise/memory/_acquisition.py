"""MemoryAcquisition: one acquisition of a MemorySemaphore, which is its own context manager.

One object is the ``cm()``, the ledger's claim and the caller's result, because
making two would cost more than the acquisition itself. The quick lane of the
ledger is taken here; everything that has to wait goes to the semaphore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING, Any, Self

from slotwise._core.messages import context_reused
from slotwise._core.outcomes import asked_pauses
from slotwise._ledger import SlotClaim
from slotwise._wait import clock
from slotwise._wait.at_once import DONE
from slotwise._wait.clock import glance
from slotwise._wait.wakers import Waker
from slotwise.memory._base_acquisition import BaseAcquisition, running_task
from slotwise.memory._ids import next_key
from slotwise.memory._log import logged
from slotwise.memory._quick_lane import undo_take

if TYPE_CHECKING:
    from slotwise._core.events import Pause
    from slotwise.memory._semaphore import MemorySemaphore
    from slotwise.memory._tracker import Tracker


class MemoryClaim(SlotClaim):
    """A claim with what the driver needs to end its wait."""

    __slots__ = ("failure", "semaphore", "since", "timeout", "waker")

    label: str | None = None

    semaphore: MemorySemaphore
    # When it began to wait, then when it was granted; not set if it was granted by the
    # quick lane, which doesn't look at the clock.
    since: float
    timeout: float | None  # the longest wait
    waiting_since: float = SlotClaim.arrived  # type: ignore[misc] # set if it had to wait; the same slot as the ledger's
    waker: Waker  # set once it waits
    failure: Exception | None  # why the wait ended without a grant


class BlockWait(MemoryClaim):
    """The wait of a block, which holds its slot without a claim, outside the line."""

    __slots__ = ()

    named = False
    slots = 1
    ttl = None

    def __init__(self, semaphore: MemorySemaphore, timeout: float | None) -> None:
        self.key = next_key()
        self.semaphore = semaphore
        self.timeout = timeout
        self._slot_number = 0  # until it is granted


class MemoryAcquisition(BaseAcquisition, MemoryClaim):
    """One slot of a MemorySemaphore without a ttl, from ``cm()`` or ``acquire()`` to its end."""

    __slots__ = ()

    slots = 1
    ttl: float | None = None

    key: int | None

    @property
    def _title(self) -> str:
        return self.semaphore._title

    def _pauses(self) -> Sequence[Pause]:
        """Return what its service has asked to pause, for events."""
        return asked_pauses(self)

    def _wait(self) -> Coroutine[Any, Any, None]:
        return self.semaphore._acquire(self)

    # -------------------------------------------------------- the quick lane

    def take(self) -> bool:
        """Take a slot by the quick lane; False if the semaphore has to be asked."""
        tracker = self.semaphore._tracker
        number = 0
        try:  # `_quick_lane.take`, inlined
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._slot_number = number = heappop(tracker.free)
                tracker.holders[self.key] = self
                return True
        except LookupError:
            pass
        except BaseException:
            self._undo_take(number)
            raise
        return False

    def _undo_take(self, number: int) -> None:
        """Give back what was taken before a signal handler raised."""
        tracker = self.semaphore._tracker
        tracker.holders.pop(self.key, None)
        undo_take(tracker, number, self.semaphore._numbers)

    def give(self) -> bool:
        """Give back what it holds; False if it has ended before."""
        tracker = self.semaphore._tracker
        # The deletion decides between this caller, others that release the same
        # acquisition, and the end of its ttl: exactly one of them frees the slot. It is not a
        # call, after which a signal handler could raise.
        try:
            is_logged = logged[DEBUG]
            if not is_logged:
                del tracker.holders[self.key]
        except KeyError:  # it has ended before, or it isn't known whether anything is logged
            is_logged = True
        if is_logged:
            return tracker.take_back(self)
        if tracker.line or tracker.attention:  # `_quick_lane.give`, inlined
            tracker.hand_over(self._slot_number)
        else:
            tracker.last_used = glance.time
            try:
                heappush(tracker.free, self._slot_number)
            finally:
                if tracker.line or tracker.attention:
                    tracker.look_after_waiters()
        return True

    # --------------------------------------------------- the context manager

    async def __aenter__(self) -> Self:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise context_reused(self._title)
        self.key = key
        tracker = self.semaphore._tracker
        number = 0
        try:  # `_quick_lane.take`, inlined
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._slot_number = number = heappop(tracker.free)
                tracker.holders[key] = self
                return self
        except LookupError:
            pass
        except BaseException:
            self._undo_take(number)
            raise
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
        except BaseException:
            self.leave_interrupted()
            raise
        self._leave()
        return DONE

    def leave_interrupted(self) -> None:
        super().leave_interrupted()
        tracker = self.semaphore._tracker
        if tracker.line or tracker.attention:  # the exception may have come before that
            tracker.look_after_waiters()


class LabelledMemoryAcquisition(MemoryAcquisition):
    """One slot of a MemorySemaphore without a ttl, for which `holders` shows a label and a time."""

    __slots__ = ("label",)

    label: str | None

    def take(self) -> bool:
        self.since = clock.now()  # before it has the slot: a signal handler may raise
        return super().take()

    async def __aenter__(self) -> Self:
        if self.key is None:
            self.since = clock.now()
        return await super().__aenter__()


class TimedMemoryAcquisition(MemoryAcquisition):
    """One slot of a MemorySemaphore with a ttl."""

    __slots__ = ("task", "ttl")

    ttl: float | None
    task: asyncio.Task[Any] | None  # to cancel when the ttl ends; not set if none

    def take(self) -> bool:
        if not MemoryAcquisition.take(self):
            return False
        self._begin_ttl(self.semaphore._tracker)
        return True

    def _begin_ttl(self, tracker: Tracker) -> None:
        if self.semaphore._cancel_task_after_ttl:
            self.task = running_task()
        self.since = since = clock.now()
        deadline = since + self.ttl  # type: ignore[operator]
        tracker.deadlines.young[self.key] = deadline  # type: ignore[union-attr]
        if deadline < tracker.alarm:
            tracker.arm(deadline)

    def give(self) -> bool:
        if not MemoryAcquisition.give(self):
            return False
        tracker = self.semaphore._tracker
        tracker.forget_deadline(self.key)
        return True

    async def __aenter__(self) -> Self:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise context_reused(self._title)
        self.key = key
        tracker = self.semaphore._tracker
        number = 0
        try:  # `_quick_lane.take`, inlined
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._slot_number = number = heappop(tracker.free)
                tracker.holders[key] = self
                # `_begin_ttl`, inlined.
                if self.semaphore._cancel_task_after_ttl:
                    self.task = running_task()
                self.since = since = clock.now()
                deadline = since + self.ttl  # type: ignore[operator]
                tracker.deadlines.young[key] = deadline  # type: ignore[union-attr]
                if deadline < tracker.alarm:
                    tracker.arm(deadline)
                return self
        except LookupError:
            pass
        except BaseException:
            self._undo_take(number)
            raise
        await self.semaphore._acquire(self)
        return self

    def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> Coroutine[Any, Any, None]:
        tracker, key = self.semaphore._tracker, self.key
        try:
            if not logged[DEBUG]:
                del tracker.holders[key]
                if tracker.line or tracker.attention:  # `_quick_lane.give`, inlined
                    tracker.hand_over(self._slot_number)
                else:
                    tracker.last_used = glance.time
                    heappush(tracker.free, self._slot_number)
                    if tracker.line or tracker.attention:
                        tracker.look_after_waiters()
                try:
                    del tracker.deadlines.young[key]  # type: ignore[union-attr]
                except KeyError:
                    tracker.forget_deadline(key)
                return DONE
        except KeyError:  # it has ended before, was never entered, or is perhaps logged
            pass
        except BaseException:
            self.leave_interrupted()
            raise
        self._leave()
        return DONE


class GeneralMemoryAcquisition(TimedMemoryAcquisition):
    """Slots of a MemorySemaphore, as many as wanted, with or without a ttl or a label.

    Never by the quick lane.
    """

    __slots__ = ("head_start", "label", "ranges", "slots")

    head_start: int
    label: str | None
    ranges: Sequence[range]
    slots: int

    def take(self) -> bool:
        return False

    def give(self) -> bool:
        return self.semaphore._tracker.take_back(self)

    # Not the quick lane's, which take a single slot.
    __aenter__ = BaseAcquisition.__aenter__
    __aexit__ = BaseAcquisition.__aexit__


class ReplacingMemoryAcquisition(GeneralMemoryAcquisition):
    """Slots of a MemorySemaphore that are taken over from a holder if none is free."""

    __slots__ = ("replaced",)

    replaces = True

    replaced: Sequence[MemoryClaim]  # the holders it has replaced; set once it asked
