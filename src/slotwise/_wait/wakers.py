"""Wake a waiter wherever it sleeps: in this loop, in another loop, in a thread.

A task sleeps on a future of its loop, a thread on a lock that somebody else
releases. This module doesn't decide who is woken; the ledger does. A wake-up that
can't be delivered goes back to the sender, which passes the slot on: at once if the loop is closed,
and also if it is closed while the wake-up is on its way.

Order matters only within an event loop. So the wake-ups of one sender for one loop are sent
together, in the order of the grants, whichever thread sends them.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from slotwise._core.running_loop import running_loop
from slotwise._wait.woken import Woken

if TYPE_CHECKING:
    import asyncio

Waker: TypeAlias = "asyncio.Future[None] | LockType"

# Who sends it, the claim, the future that its task waits for, and its result or its exception.
_WakeUp: TypeAlias = "tuple[Sender[Any], Any, asyncio.Future[Any], object, Exception | None]"

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Sender(Protocol[T_contra]):
    """Whoever grants: it takes back what can't be delivered."""

    @property
    def woken(self) -> Woken:
        """The tasks that were granted something and have not run yet."""

    def withdraw(self, claim: T_contra, /) -> None:
        """End a claim whose waiter is gone, and pass its slots on."""

    def refused(self, claim: T_contra, /) -> None:
        """The waiter was cancelled before the delivery arrived."""


def thread_waker() -> LockType:
    """A waker for a plain thread, which sleeps in its ``acquire``."""
    lock = allocate_lock()
    lock.acquire()
    return lock


def block_on(waker: Waker) -> None:
    """Let this thread sleep until its waker is used."""
    cast("LockType", waker).acquire()


def _wake_thread(waker: LockType) -> None:
    """Tell the thread that sleeps on ``waker`` that its wait is over; twice does no harm."""
    try:
        waker.release()
    except RuntimeError:
        pass  # it was woken before


def prepare_to_wake(
    waker: Waker,
    sender: Sender[T],
    claim: T,
    outcome: object = None,
) -> Callable[[], None]:
    """Return what has to be called to tell whoever sleeps on ``waker`` that its wait is over.

    Tasks of one event loop are told in the order in which this was called, by one caller at a
    time, whoever makes the calls that are returned. Making a call twice does no harm.
    """
    if isinstance(waker, LockType):
        return partial(_wake_thread, waker)
    woken = sender.woken
    woken.add(waker)
    woken.under_way.add(waker)
    loop = waker.get_loop()
    wake_ups = woken.by_loop.get(id(loop))
    if wake_ups is None:
        wake_ups = LoopWakeups(loop)
        woken.keep(wake_ups)
    wake_ups.queue.append((sender, claim, waker, outcome, None))
    return wake_ups.send


class Refusals(Generic[T]):
    """Tells waiters that they get nothing, in no order: there may be very many."""

    __slots__ = ("_by_loop", "_sender")

    def __init__(self, sender: Sender[T]) -> None:
        self._sender = sender
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopWakeups] = {}

    def add(
        self, waker: Waker, claim: T, outcome: object = None, failure: Exception | None = None
    ) -> None:
        if isinstance(waker, LockType):
            _wake_thread(waker)
            return
        loop = waker.get_loop()
        wake_ups = self._by_loop.get(loop)
        if wake_ups is None:
            wake_ups = self._by_loop[loop] = LoopWakeups(loop)
        wake_ups.add(self._sender, claim, waker, outcome, failure)

    def send(self) -> None:
        for wake_ups in self._by_loop.values():
            wake_ups.send()


class LoopWakeups:
    """Wake-ups for the tasks of one event loop, in the order in which they arrive.

    It refers to its sender only while there is something to send: the sender refers to it, and
    the garbage collector would have to find the cycle.
    """

    __slots__ = ("_arriving", "loop", "queue")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: deque[_WakeUp] = deque()  # what is in it has to be sent afterwards
        self._arriving = False

    @property
    def is_obsolete(self) -> bool:
        """Whether nothing is on its way, or ever will be."""
        return self.loop.is_closed() and not self.queue

    def add(
        self,
        sender: Sender[T],
        claim: T,
        future: asyncio.Future[Any],
        outcome: object = None,
        failure: Exception | None = None,
    ) -> None:
        """Add one, which has to be sent afterwards."""
        self.queue.append((sender, claim, future, outcome, failure))

    def send(self) -> None:
        """Have them arrive in their loop, or take them back; calling it twice does no harm."""
        if self.loop is running_loop():
            self.arrive()
            return
        delivery = _WakeupDelivery()
        delivery.wake_ups = self
        try:
            self.loop.call_soon_threadsafe(delivery)
        except RuntimeError:  # it is closed
            delivery.wake_ups = None
            self.take_back()

    def arrive(self) -> None:
        """Tell the waiters, in their loop.

        If it interrupts itself, by a garbage collection or a signal handler, the
        interrupted call tells the rest.
        """
        if self._arriving:
            return
        queue = self.queue
        self._arriving = True
        try:
            while queue:
                sender, claim, future, outcome, failure = queue.popleft()
                is_cancelled = future.done()
                if not is_cancelled:
                    if failure is None:
                        future.set_result(outcome)
                    else:
                        future.set_exception(failure)
                sender.woken.under_way.discard(future)
                if is_cancelled:
                    sender.woken.discard(future)
                    sender.refused(claim)
        finally:
            self._arriving = False

    def take_back(self) -> None:
        """Return undeliverable wake-ups to their senders."""
        while self.queue:
            try:
                sender, claim, future, *_ = self.queue.popleft()
            except IndexError:
                return  # another thread took the last one
            sender.woken.forget(future)
            sender.withdraw(claim)


class _WakeupDelivery:
    """The callback that delivers wake-ups; they are sent again if it is not called.

    A loop that is closed drops it, and then they are taken back.
    """

    wake_ups: LoopWakeups | None = None  # until they have arrived

    def __call__(self) -> None:
        assert self.wake_ups is not None
        self.wake_ups.arrive()
        self.wake_ups = None

    def __del__(self) -> None:
        if self.wake_ups is not None:
            self.wake_ups.send()
