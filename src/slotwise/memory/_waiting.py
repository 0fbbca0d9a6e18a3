"""Wait for a claim in this process: in a task, or in a plain thread.

It is the same for semaphores and tiers; the tracker decides what they wait for.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Task, _get_running_loop, current_task, get_running_loop
from collections.abc import Callable
from typing import Any, Generic

from slotwise._core.overload import Overload
from slotwise._core.trio_run import running_trio
from slotwise._core.twins import is_blocking
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, posted
from slotwise._wait.section import exclusive
from slotwise._wait.wakers import Waker, block_on, thread_waker
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
        loop = waiting_loop()
        if self._request(claim, thread_waker if loop is None else loop.create_future):
            if loop is not None and self._tracker.woken.any_of(loop):
                await self._let_woken_pass(claim)
            return
        waker: Any = claim.waker
        try:
            clock.require_timers()
            if loop is None:
                block_on(waker)
            else:
                await waker
        except BaseException:  # cancelled, interrupted, or collected together with its event loop
            self._tracker.withdraw(claim)
            raise
        finally:
            self._tracker.woken.discard(waker)
        if claim.failure is not None:
            raise claim.failure

    async def _let_woken_pass(self, claim: C) -> None:
        """Let others enter first who were granted their slots before ``claim`` got its own."""
        try:
            await self._tracker.woken.let_pass()
        except BaseException:
            self._tracker.withdraw(claim)
            raise


def waiting_loop() -> AbstractEventLoop | None:
    """Return the event loop that the caller waits in; None if it waits by blocking its thread.

    Raises:
        RuntimeError: there is none, and it is no twin for plain threads that calls.
    """
    if is_blocking():
        return None
    try:
        return get_running_loop()
    except RuntimeError:
        return running_trio()


def running_task() -> Task[Any] | None:
    return None if _get_running_loop() is None else current_task()
