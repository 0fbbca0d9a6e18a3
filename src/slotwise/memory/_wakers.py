"""Waking a waiter wherever it sleeps: in this loop, in another loop, in a thread.

A task sleeps on a future of its loop, a thread on a lock that somebody else
opens. Nothing here decides who is woken; the ledger does. A wake that cannot
be delivered is reported, so that the driver can hand the slot on: at once if
the loop is closed, and by a Parcel if it is closed while the wake is under way.
"""

from __future__ import annotations

import _thread
import asyncio
from asyncio import _get_running_loop
from typing import TYPE_CHECKING, TypeAlias, cast

from slotwise._ledger import Pass

if TYPE_CHECKING:
    from slotwise.memory._tracker import Tracker

Waker: TypeAlias = "asyncio.Future[None] | _thread.LockType"


def closed_door() -> _thread.LockType:
    """A waker for a plain thread: it sleeps in ``acquire``, `wake` opens."""
    door = _thread.allocate_lock()
    door.acquire()
    return door


def wake(waker: Waker) -> bool:
    """Wake whoever sleeps on ``waker``; False if nobody ever will wake there again."""
    if type(waker) is _thread.LockType:
        waker.release()
        return True
    loop = waker.get_loop()
    try:
        if loop is not _get_running_loop():
            loop.call_soon_threadsafe(_open, waker)
        elif not waker.done():  # see _open
            waker.set_result(None)
    except RuntimeError:  # the loop is closed
        return False
    return True


def _open(waker: asyncio.Future[None]) -> None:
    # Done already if its task was cancelled: that task gives the grant back itself.
    if not waker.done():
        waker.set_result(None)


class Parcel:
    """A slot on its way to a future of the line; undelivered, it goes to the next.

    Whatever becomes of it: its addressee has ended, or the loop that was to
    open it is closed and drops it.
    """

    __slots__ = ("_contents", "_failure", "_tracker")

    def __init__(self, tracker: Tracker, contents: Pass, failure: Exception | None) -> None:
        self._tracker = tracker
        self._contents: Pass | None = contents
        self._failure = failure

    def open(self) -> None:
        """Deliver it, in the loop of its addressee."""
        contents, self._contents = self._contents, None
        assert contents is not None
        future = cast("asyncio.Future[int]", contents.key)
        if future.done():
            if contents._slot_number:
                self._tracker.withdraw(contents)
        elif self._failure is not None:
            future.set_exception(self._failure)
        else:
            future.set_result(contents._slot_number)

    def __del__(self) -> None:
        if self._contents is not None and self._contents._slot_number:
            self._tracker.abandon(self._contents)
