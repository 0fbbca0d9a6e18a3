"""MemoryAcquisition: one acquisition of a MemorySemaphore, and the context manager around it.

One object is the ``cm()``, the ledger's claim and the caller's result, because
making two would cost more than the acquisition itself. The quick lane of the
ledger is taken here; everything that has to wait goes to the semaphore.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING, Any

from slotwise._core import fork
from slotwise._core.limit import AcquisitionContext, refuse_to_block_a_loop
from slotwise._core.messages import (
    context_not_entered,
    context_not_yet_entered,
    context_reused,
    display,
)
from slotwise._ledger import Claim
from slotwise._wait import clock
from slotwise._wait.clock import glance
from slotwise._wait.wakers import Waker
from slotwise.memory._log import logged
from slotwise.memory._quick_lane import undo_take

if TYPE_CHECKING:
    from slotwise.memory._semaphore import MemorySemaphore
    from slotwise.memory._tracker import Tracker

# Acquisition ids are a number behind a prefix of this process. The number is
# what the ledger files a lease under; the text is made when somebody reads it.
# A forked child has a prefix of its own from the number on where it began.
next_key = itertools.count(1).__next__


def _new_prefix() -> str:
    return f"m{secrets.token_hex(4)}-"


_prefixes: list[tuple[int, str]] = [(0, _new_prefix())]  # the newest first

fork.in_child(fork.Step.FORGET, lambda: _prefixes.insert(0, (next_key(), _new_prefix())))


def id_of(key: int) -> str:
    """The acquisition id behind a key."""
    return next(f"{prefix}{key}" for first, prefix in _prefixes if key >= first)


def key_of(acquisition_id: str) -> int | None:
    """The key behind an id; None if this process never issued it."""
    digits = acquisition_id.rpartition("-")[2]
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        return None
    key = int(digits)
    # Asking the counter uses up a number, which is no loss.
    return key if 0 < key < next_key() and id_of(key) == acquisition_id else None


def id_of_block(which: str) -> str:
    """What a block is shown by that has no acquisition, and so no id."""
    return f"{_prefixes[0][1]}block-{which}"


def is_id_of_block(acquisition_id: str) -> bool:
    return "-block-" in acquisition_id


class MemoryClaim(Claim):
    """A claim with what the driver needs to end its wait."""

    __slots__ = ("failure", "semaphore", "since", "timeout", "waker")

    label: str | None = None

    semaphore: MemorySemaphore
    # When it began to wait, then when it was granted; not set if it was granted by the
    # quick lane, which doesn't look at the clock.
    since: float
    timeout: float | None  # the longest wait
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


class MemoryAcquisition(MemoryClaim, AcquisitionContext):
    """One slot of a MemorySemaphore without a ttl, from ``cm()`` or ``acquire()`` to its end.

    Made by `MemorySemaphore.cm` alone, which also fills in what all leases have:
    a call of ``__init__`` would be a tenth of an uncontended acquisition.
    """

    __slots__ = ()

    slots = 1
    ttl: float | None = None

    key: int | None  # None until it is entered

    __init__ = object.__init__

    @property
    def acquisition_id(self) -> str:
        if self.key is None:
            raise context_not_yet_entered(self.semaphore._title)
        return id_of(self.key)

    @property
    def slot_number(self) -> int:
        if self.key is None:
            raise context_not_yet_entered(self.semaphore._title)
        return self._slot_number

    def __eq__(self, other: object) -> bool:
        return self is other or (self.key is not None and super().__eq__(other))

    def __hash__(self) -> int:
        return object.__hash__(self) if self.key is None else super().__hash__()

    def __repr__(self) -> str:
        if self.key is None:
            return f"<cm() of {display(self.semaphore.name)}, not entered yet>"
        return super().__repr__()

    # -------------------------------------------------------- the quick lane

    def take(self) -> bool:
        """Take a slot by the quick lane; False if the semaphore has to be asked."""
        tracker = self.semaphore._tracker
        number = 0
        try:  # `_quick_lane.take`, written out
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
        # lease, and the end of its ttl: exactly one of them frees the slot. It is not a
        # call, after which a signal handler could raise.
        try:
            is_logged = logged[DEBUG]
            if not is_logged:
                del tracker.holders[self.key]
        except KeyError:  # it has ended before, or it isn't known whether anything is logged
            is_logged = True
        if is_logged:
            return tracker.take_back(self)
        tracker.last_used = glance.time
        if tracker.line or tracker.attention:  # `_quick_lane.give`, written out
            tracker.hand_over(self._slot_number)
        else:
            try:
                heappush(tracker.free, self._slot_number)
            finally:
                if tracker.line or tracker.attention:
                    tracker.look_after_waiters()
        return True

    # --------------------------------------------------- the context manager

    async def __aenter__(self) -> MemoryAcquisition:
        key = next_key()
        if self.key is not None:  # nothing comes between this look and the next line
            raise context_reused(self.semaphore._title)
        self.key = key
        tracker = self.semaphore._tracker
        number = 0
        try:  # `_quick_lane.take`, written out
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

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        tracker = self.semaphore._tracker
        try:
            if not logged[DEBUG]:
                del tracker.holders[self.key]
                tracker.last_used = glance.time
                if tracker.line or tracker.attention:  # `_quick_lane.give`, written out
                    tracker.hand_over(self._slot_number)
                else:
                    heappush(tracker.free, self._slot_number)
                    if tracker.line or tracker.attention:
                        tracker.look_after_waiters()
                return
        except KeyError:  # it has ended before, was never entered, or is perhaps logged
            pass
        except BaseException:
            self.leave_interrupted()
            raise
        self._leave()

    def __enter__(self) -> MemoryAcquisition:
        refuse_to_block_a_loop("'with'")
        key = next_key()
        if self.key is not None:
            raise context_reused(self.semaphore._title)
        self.key = key
        try:
            if not self.take():
                self.semaphore._acquire_sync(self)
        except BaseException:  # a signal handler's, for one, when it had its slot already
            self.give()
            raise
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        try:
            self._leave()
        except BaseException:
            self.leave_interrupted()
            raise

    def leave_interrupted(self) -> None:
        """Leave the block all the same when a signal handler raised meanwhile."""
        self.give()
        tracker = self.semaphore._tracker
        if tracker.line or tracker.attention:  # it may have come before they were looked after
            tracker.look_after_waiters()

    def _leave(self) -> None:
        if self.key is None:
            raise context_not_entered(self.semaphore._title)
        self.give()


class TimedMemoryAcquisition(MemoryAcquisition):
    """One slot of a MemorySemaphore with a ttl."""

    __slots__ = ("task", "ttl")

    ttl: float | None
    task: asyncio.Task[Any] | None  # whom to cancel at the end; not set if nobody

    def take(self) -> bool:
        if not MemoryAcquisition.take(self):
            return False
        self._begin_ttl(self.semaphore._tracker)
        return True

    def _begin_ttl(self, tracker: Tracker) -> None:
        if self.semaphore._cancel_task_after_ttl:
            self.task = running_task()
        self.since = since = clock.now()
        tracker.young_deadlines[self.key] = deadline = since + self.ttl  # type: ignore[operator]
        if deadline < tracker.alarm:
            tracker.arm(deadline)

    def give(self) -> bool:
        if not MemoryAcquisition.give(self):
            return False
        tracker = self.semaphore._tracker
        if tracker.young_deadlines.pop(self.key, None) is None:
            tracker.forget_deadline(self.key)
        return True

    async def __aenter__(self) -> MemoryAcquisition:
        key = next_key()
        if self.key is not None:  # nothing comes between this look and the next line
            raise context_reused(self.semaphore._title)
        self.key = key
        tracker = self.semaphore._tracker
        number = 0
        try:  # `_quick_lane.take`, written out
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._slot_number = number = heappop(tracker.free)
                tracker.holders[key] = self
                self._begin_ttl(tracker)
                return self
        except LookupError:
            pass
        except BaseException:
            self._undo_take(number)
            raise
        await self.semaphore._acquire(self)
        return self

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        tracker = self.semaphore._tracker
        try:
            if not logged[DEBUG]:
                del tracker.holders[self.key]
                tracker.last_used = glance.time
                if tracker.line or tracker.attention:  # `_quick_lane.give`, written out
                    tracker.hand_over(self._slot_number)
                else:
                    heappush(tracker.free, self._slot_number)
                    if tracker.line or tracker.attention:
                        tracker.look_after_waiters()
                if tracker.young_deadlines.pop(self.key, None) is None:
                    tracker.forget_deadline(self.key)
                return
        except KeyError:  # it has ended before, was never entered, or is perhaps logged
            pass
        except BaseException:
            self.leave_interrupted()
            raise
        self._leave()


class GeneralMemoryAcquisition(TimedMemoryAcquisition):
    """Slots of a MemorySemaphore, as many as wanted, with or without a ttl or a label.

    Never by the quick lane.
    """

    __slots__ = ("label", "slots")

    label: str | None
    slots: int

    def take(self) -> bool:
        return False

    def give(self) -> bool:
        return self.semaphore._tracker.take_back(self)

    async def __aenter__(self) -> MemoryAcquisition:
        key = next_key()
        if self.key is not None:
            raise context_reused(self.semaphore._title)
        self.key = key
        await self.semaphore._acquire(self)
        return self

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self._leave()


def running_task() -> asyncio.Task[Any] | None:
    return None if asyncio._get_running_loop() is None else asyncio.current_task()
