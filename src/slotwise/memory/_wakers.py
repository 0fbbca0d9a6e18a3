"""Waking a waiter wherever it sleeps: in this loop, in another loop, in a thread.

A task sleeps on a future of its loop, a thread on a lock that somebody else
opens. Nothing here decides who is woken; the ledger does. A wake that cannot
be delivered is reported, so that the driver can hand the slot on.
"""

from __future__ import annotations

import _thread
import asyncio
from asyncio import _get_running_loop
from typing import TypeAlias

Waker: TypeAlias = "asyncio.Future[None] | _thread.LockType"


def closed_door() -> _thread.LockType:
    """A waker for a plain thread: it sleeps in ``acquire``, `wake` opens."""
    door = _thread.allocate_lock()
    door.acquire()
    return door


def wake(waker: Waker) -> bool:
    """Wake whoever sleeps on ``waker``; False if nobody ever will wake there again."""
    if isinstance(waker, _thread.LockType):
        waker.release()
        return True
    loop = waker.get_loop()
    try:
        if loop is _get_running_loop():
            _open(waker)
        else:
            loop.call_soon_threadsafe(_open, waker)
    except RuntimeError:  # the loop is closed
        return False
    return True


def _open(waker: asyncio.Future[None]) -> None:
    # Done already if its task was cancelled: that task gives the grant back itself.
    if not waker.done():
        waker.set_result(None)
