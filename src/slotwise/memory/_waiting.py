"""Wait for a claim in this process: in a task, or in a plain thread.

It is the same for semaphores and tiers; the tracker decides what they wait for.
"""

from __future__ import annotations

from _thread import LockType
from asyncio import get_running_loop
from collections.abc import Callable
from typing import Any, Generic, cast

from slotwise._core.overload import Overload
from slotwise._core.trio_run import running_trio
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, posted
from slotwise._wait.section import exclusive
from slotwise._wait.wakers import Waker
from slotwise.memory._base_tracker import C


class Waiting(Generic[C]):
    """A mixin for what callers acquire."""

    __slots__ = ()

    _tracker: Any  # a BaseTracker[C]
    _overload: Overload | None

    def _ask(self, claim: C, make_waker: Callable[[], Waker]) -> bool:
        """Ask the tracker, *in the section*; see `BaseTracker.ask`."""
        granted: bool = self._tracker.ask(claim, make_waker, self._overload)
        return granted

    def _request(self, claim: C, make_waker: Callable[[], Waker]) -> bool:
        """Ask the ledger; True if the claim has its slots, False if it has to wait."""
        try:
            granted = exclusive(self._ask, claim, make_waker)
        finally:
            if posted:
                deliver_posted()
        if not granted and claim.timeout == 0:
            raise claim.failure
        return granted

    async def _get(self, claim: C) -> None:
        """Ask the ledger, and wait if the slots are not free."""
        try:
            loop = get_running_loop()
        except RuntimeError:
            loop = running_trio()
        if self._request(claim, loop.create_future):
            if self._tracker.woken.any_of(loop):
                await self._let_woken_pass(claim)
            return
        try:
            clock.require_timers()
            await claim.waker
        except BaseException:  # cancelled, or collected together with its event loop
            self._tracker.withdraw(claim)
            raise
        finally:
            self._tracker.woken.discard(claim.waker)
        if claim.failure is not None:
            raise claim.failure

    async def _let_woken_pass(self, claim: C) -> None:
        """Let others enter first who were granted their slots before ``claim`` got its own."""
        try:
            await self._tracker.woken.let_pass()
        except BaseException:
            self._tracker.withdraw(claim)
            raise

    def _wait_sync(self, claim: C) -> None:
        try:
            clock.require_timers()
            cast("LockType", claim.waker).acquire()
        except BaseException:  # KeyboardInterrupt, in the main thread
            self._tracker.withdraw(claim)
            raise
        if claim.failure is not None:
            raise claim.failure
