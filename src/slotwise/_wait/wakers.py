"""Wake a waiter wherever it sleeps: in this loop, in another loop, in a thread.

A task sleeps on a future of its loop, a thread on a lock that somebody else
releases. This module doesn't decide who is woken; the ledger does. A wake-up that
can't be delivered is reported, so that the driver can pass the slot on: at once if
the loop is closed, and by the Delivery if it is closed while the wake-up travels.
"""

from __future__ import annotations

import asyncio
from _thread import LockType, allocate_lock
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from slotwise._wait.woken import Woken

Waker: TypeAlias = "asyncio.Future[None] | LockType"

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Sender(Protocol[T_contra]):
    """Whoever grants: it takes back what can't be delivered."""

    @property
    def woken(self) -> Woken:
        """The tasks that were woken and have not run yet."""

    def withdraw(self, claim: T_contra, /) -> None:
        """End a claim whose waiter is gone, and pass its slots on."""

    def refused(self, claim: T_contra, /) -> None:
        """The waiter was cancelled before the delivery arrived."""


def thread_waker() -> LockType:
    """A waker for a plain thread, which sleeps in its ``acquire``."""
    lock = allocate_lock()
    lock.acquire()
    return lock


def wake(waker: Waker, sender: Sender[T], claim: T) -> bool:
    """Tell whoever sleeps on ``waker`` that its wait is over; False if its loop is closed.

    Doing so twice does no harm.
    """
    if isinstance(waker, LockType):
        try:
            waker.release()
        except RuntimeError:
            pass  # it was woken before
        return True
    return send(waker, Delivery(sender, claim, waker, None))


def send(future: asyncio.Future[Any], delivery: Delivery[Any]) -> bool:
    """Have ``delivery`` arrive in the loop of ``future``; False if that is closed."""
    loop = future.get_loop()
    woken = delivery.sender.woken
    # While another one travels, perhaps to this loop, it would overtake that one.
    if loop is asyncio._get_running_loop() and not woken.under_way:
        delivery.arrive()
        return True
    woken.send(delivery)
    try:
        loop.call_soon_threadsafe(delivery.arrive)
    except RuntimeError:
        delivery.take_back()
        return False
    return True


class Delivery(Generic[T]):
    """The outcome of a wait on its way to a future.

    If the loop that it travels to is closed and drops it, what was granted
    goes to the next waiter.
    """

    __slots__ = ("_claim", "_failure", "_future", "_outcome", "sender")

    def __init__(
        self,
        sender: Sender[T],
        claim: T,
        future: asyncio.Future[Any],
        outcome: object,
        failure: Exception | None = None,
    ) -> None:
        self.sender = sender
        self._claim: T | None = claim
        self._future = future
        self._outcome = outcome
        self._failure = failure

    def arrive(self) -> None:
        """Tell the waiter, in its loop."""
        claim = self.take_back()
        if self._future.done():  # cancelled meanwhile
            self.sender.refused(claim)
        elif self._failure is not None:
            self._future.set_exception(self._failure)
        else:
            self.sender.woken.add(self._future)
            self._future.set_result(self._outcome)

    def take_back(self) -> T:
        """End the delivery; whoever calls this has to see to the claim."""
        claim, self._claim = self._claim, None
        assert claim is not None
        if self.sender.woken.under_way:
            self.sender.woken.arrive(self)
        return claim

    def __del__(self) -> None:
        if self._claim is not None:
            self.sender.withdraw(self.take_back())
