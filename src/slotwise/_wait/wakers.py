"""Waking a waiter wherever it sleeps: in this loop, in another loop, in a thread.

A task sleeps on a future of its loop, a thread on a lock that somebody else
opens. Nothing here decides who is woken; the ledger does. A wake that cannot
be delivered is reported, so that the driver can hand the slot on: at once if
the loop is closed, and by the Delivery if it is closed while the wake is under way.
"""

from __future__ import annotations

import _thread
import asyncio
from asyncio import _get_running_loop
from typing import Any, Protocol, TypeAlias

from slotwise._wait.woken import Woken


class Sender(Protocol):
    """Whoever grants: it takes back what can't be delivered."""

    woken: Woken

    def withdraw(self, claim: Any) -> None:
        """End a claim whose waiter is gone, and hand its slots on."""

    def refused(self, claim: Any) -> None:
        """The waiter was cancelled before the delivery arrived."""


Waker: TypeAlias = "asyncio.Future[None] | _thread.LockType"


def thread_waker() -> _thread.LockType:
    """A waker for a plain thread: it sleeps in ``acquire``, whoever wakes it opens."""
    door = _thread.allocate_lock()
    door.acquire()
    return door


def send(future: asyncio.Future[Any], delivery: Delivery) -> bool:
    """Have ``delivery`` opened in the loop of ``future``; False if that is closed."""
    loop = future.get_loop()
    woken = delivery.tracker.woken
    # While another is under way, perhaps to this loop, it would overtake that one.
    if loop is _get_running_loop() and not woken.under_way:
        delivery.open()
        return True
    woken.send(delivery)
    try:
        loop.call_soon_threadsafe(delivery.open)
    except RuntimeError:
        delivery.take_back()
        return False
    return True


class Delivery:
    """The outcome of a wait on its way to a future.

    If the loop that was to open it is closed, and drops it, what was granted
    goes to the next.
    """

    __slots__ = ("_contents", "_failure", "_future", "_outcome", "tracker")

    def __init__(
        self,
        tracker: Sender,
        contents: Any,
        future: asyncio.Future[Any],
        outcome: object,
        failure: Exception | None = None,
    ) -> None:
        self.tracker = tracker
        self._contents: Any = contents
        self._future = future
        self._outcome = outcome
        self._failure = failure

    def open(self) -> None:
        """Deliver it, in the loop of its addressee."""
        contents = self.take_back()
        if self._future.done():  # cancelled meanwhile
            self.tracker.refused(contents)
        elif self._failure is not None:
            self._future.set_exception(self._failure)
        else:
            self.tracker.woken.add(self._future)
            self._future.set_result(self._outcome)

    def take_back(self) -> Any:
        """Take out what is in it; what becomes of that is the caller's business now."""
        contents, self._contents = self._contents, None
        assert contents is not None
        if self.tracker.woken.under_way:
            self.tracker.woken.arrive(self)
        return contents

    def __del__(self) -> None:
        if self._contents is not None:
            self.tracker.withdraw(self.take_back())
