"""Lease: one acquisition of a MemorySemaphore, and the context manager around it.

One object is the ``cm()``, the ledger's claim and the caller's result, because
making two would cost more than the acquisition itself. The quick lane of the
ledger is taken here; everything that has to wait goes to the semaphore.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from heapq import heappop, heappush
from logging import INFO
from typing import TYPE_CHECKING, Any

from slotwise import _clock
from slotwise._ledger import Claim
from slotwise.memory._log import perhaps_wanted
from slotwise.memory._wakers import Waker
from slotwise.semaphore import (
    AcquisitionContext,
    context_not_entered,
    context_reused,
    refuse_to_block_a_loop,
)

if TYPE_CHECKING:
    from slotwise.memory.semaphore import MemorySemaphore

# Acquisition ids are a number behind a prefix of this process. The number is
# what the ledger files a lease under; the text is made when somebody reads it.
next_key = itertools.count(1).__next__
_prefix = f"m{secrets.token_hex(4)}-"


def _new_prefix() -> None:
    """After a fork: ids of parent and child must not be mistaken for each other."""
    global _prefix
    _prefix = f"m{secrets.token_hex(4)}-"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_prefix)


def key_of(acquisition_id: str) -> int | None:
    """The key behind an id; None if this process never issued it."""
    digits = acquisition_id.removeprefix(_prefix)
    if digits == acquisition_id or not (digits.isascii() and digits.isdecimal()):
        return None
    key = int(digits) if len(digits) < 20 else 0
    # Asking the counter uses up a number, which is no loss.
    return key if str(key) == digits and 0 < key < next_key() else None


class Lease(Claim, AcquisitionContext):
    """A claim on a MemorySemaphore, from ``cm()`` or ``acquire()`` to its end."""

    __slots__ = ("failure", "semaphore", "since", "task", "timeout", "waker")

    key: int | None  # None until it is entered
    semaphore: MemorySemaphore
    timeout: float | None  # the longest wait
    since: float  # when it was granted; read only with a ttl or a log
    task: asyncio.Task[Any] | None  # whom to cancel at the end of the ttl
    waker: Waker  # set once it waits
    failure: Exception | None  # why the wait ended without a grant

    def __init__(self, semaphore: MemorySemaphore, slots: int, timeout: float | None) -> None:
        self.key = None
        self.semaphore = semaphore
        self.slots = slots
        self.ttl = semaphore._ttl
        self.timeout = timeout

    @property
    def acquisition_id(self) -> str:
        if self.key is None:
            raise context_not_entered(self.semaphore)
        return f"{_prefix}{self.key}"

    # -------------------------------------------------------- the quick lane

    def take(self) -> bool:
        """Take a slot by the quick lane; False if the semaphore has to be asked."""
        ledger = self.semaphore._ledger
        if ledger.attention or self.slots > 1 or perhaps_wanted(INFO, True):
            return False
        try:
            self._slot_number = heappop(ledger.free)
        except IndexError:
            return False
        ledger.holders[self.key] = self
        if self.ttl is not None:
            self.start_ttl()
        return True

    def start_ttl(self) -> None:
        """Note when a quickly taken slot has to be given back, and by whom."""
        semaphore = self.semaphore
        self.since = since = _clock.now()
        self.task = semaphore._task_to_cancel() if semaphore._cancel_task_after_ttl else None
        deadline = since + self.ttl  # type: ignore[operator]  # only called with a ttl
        semaphore._ledger.deadlines.young[self.key] = deadline  # type: ignore[union-attr]
        tracker = semaphore._tracker
        if deadline < tracker.alarm:
            tracker.arm(deadline)

    def give(self) -> bool:
        """Give a quickly taken slot back; False if the semaphore has to be asked."""
        semaphore = self.semaphore
        ledger = semaphore._ledger
        if self.slots > 1 or perhaps_wanted(INFO, True):
            return False
        if ledger.holders.pop(self.key, None) is None:
            return False
        if self.ttl is not None and ledger.deadlines.young.pop(self.key, None) is None:  # type: ignore[union-attr]
            semaphore._tracker.forget_deadline(self.key)
        heappush(ledger.free, self._slot_number)
        tracker = semaphore._tracker
        tracker.last_used = _clock.glance.time
        if ledger.attention:
            tracker.settle()
        return True

    # --------------------------------------------------- the context manager

    async def __aenter__(self) -> Lease:
        if self.key is not None:
            raise context_reused(self.semaphore)
        self.key = next_key()
        if not self.take():
            await self.semaphore._acquire(self)
        return self

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if not self.give():
            self._give_slowly()

    def __enter__(self) -> Lease:
        refuse_to_block_a_loop("'with'")
        if self.key is not None:
            raise context_reused(self.semaphore)
        self.key = next_key()
        if not self.take():
            self.semaphore._acquire_sync(self)
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if not self.give():
            self._give_slowly()

    def _give_slowly(self) -> None:
        if self.key is None:
            raise context_not_entered(self.semaphore)
        self.semaphore._tracker.release(self)
