"""Woken: let tasks that were granted slots run before newcomers of the same event loop.

A grant makes a task ready to run, but others run before it. Without this, one of them could
take a slot that became free as well, and enter before a task that was granted its slot
earlier. The ledger decides who is granted what; this is only about who enters first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from slotwise._core.running_loop import running_loop

if TYPE_CHECKING:
    import asyncio

    from slotwise._core.trio_run import TrioRun
    from slotwise._wait.wakers import LoopWakeups


class Woken(set[Any]):
    """The futures of the tasks that were granted something and have not run yet.

    A set and nothing more, so that the quick lane can ask cheaply whether it is empty.
    """

    # under_way    those who have not been told yet
    # by_loop      what they are told with, by the ids of their loops
    __slots__ = ("by_loop", "under_way")

    def __init__(self) -> None:
        super().__init__()
        self.under_way: set[Any] = set()
        self.by_loop: dict[int, LoopWakeups] = {}

    def keep(self, wake_ups: LoopWakeups) -> None:
        """Use these wake-ups for the tasks of its loop from now on."""
        kept = {at: each for at, each in self.by_loop.items() if not each.is_obsolete}
        self.by_loop = {**kept, id(wake_ups.loop): wake_ups}

    def forget(self, future: object) -> None:
        """It will not run."""
        self.under_way.discard(future)
        self.discard(future)

    def any_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether any of them is of ``loop``; or perhaps, if they are too many to ask each."""
        return len(self) > 16 or any(each.get_loop() is loop for each in tuple(self))

    def hold_newcomers_back(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hold newcomers back until the tasks of ``loop`` that are ready now have run."""
        place = _Newcomer(loop)
        self.add(place)
        loop_pass = _LoopPass(self, place)
        try:
            if loop is running_loop():
                loop.call_soon(loop_pass)
            else:
                loop.call_soon_threadsafe(loop_pass)
        except RuntimeError:
            pass  # it is closed: `loop_pass` ends here

    async def let_pass(self) -> None:
        """Let those that are woken now run first; meanwhile later newcomers let the caller pass.

        Once they have been told they are ready to run, so one pass of the loop is enough.
        """
        trio: TrioRun | None = None
        loop = running_loop()
        if loop is None:
            from slotwise._core.trio_run import running_trio

            loop = running_trio()
            trio = cast("TrioRun", loop)
        wake_ups = self.by_loop.get(id(loop))
        if wake_ups is not None:
            wake_ups.arrive()
        me = _Newcomer(loop)
        self.add(me)
        try:
            if trio is None:
                import asyncio  # whoever runs a loop has imported it

                await asyncio.sleep(0)
            else:
                await trio.pass_once()
        finally:
            self.discard(me)


class _Newcomer:
    """A newcomer that lets woken tasks go first."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop


class _LoopPass:
    """The callback of `hold_newcomers_back`; it ends when a loop has called it, or dropped it."""

    __slots__ = ("_place", "_woken")

    def __init__(self, woken: Woken, place: _Newcomer) -> None:
        self._woken, self._place = woken, place

    def __call__(self) -> None: ...

    def __del__(self) -> None:
        self._woken.discard(self._place)


# For semaphores that never had anybody to wake. Shared, so nothing is added to it.
NOBODY_WOKEN = Woken()
