"""Woken: let tasks that were granted slots run before newcomers of the same event loop.

A grant makes a task ready to run, but others run before it. Without this, one of them could
take a slot that became free as well, and enter before a task that was granted its slot
earlier. The ledger decides who is granted what; this is only about who enters first.
"""

from __future__ import annotations

import asyncio

from slotwise._wait.deliveries import deliver_posted


class Woken(set[object]):
    """The futures whose tasks have been woken and have not run yet.

    A set and nothing more, so that the quick lane can ask cheaply whether it is empty.
    """

    # In `under_way`, and in the set itself: the ids of the wake-ups that are posted, or
    # travel to another thread's loop. Ids, because a wake-up that nobody keeps is handed on.
    __slots__ = ("under_way",)

    def __init__(self) -> None:
        super().__init__()
        self.under_way: set[int] = set()

    def send(self, wake_up: object) -> None:
        """A wake-up is posted, or sets out for a loop, to arrive as a callback."""
        self.under_way.add(id(wake_up))
        self.add(id(wake_up))

    def arrive(self, wake_up: object) -> None:
        """It has arrived, or never will."""
        self.under_way.discard(id(wake_up))
        self.discard(id(wake_up))

    async def let_pass(self) -> None:
        """Let those run that are here now; meanwhile later newcomers let the caller pass.

        They are ready to run already, so one pass of the loop is enough. A wake-up
        that is under way is ready after one pass, and runs in the next.
        """
        deliver_posted()  # by other threads, which may not have come to it
        me = object()
        passes = 2 if self.under_way else 1
        self.add(me)
        try:
            for _ in range(passes):
                await asyncio.sleep(0)
        finally:
            self.discard(me)


# What a semaphore has that never had anybody to wake. Shared, so nothing is added to it.
NOBODY_WOKEN = Woken()
