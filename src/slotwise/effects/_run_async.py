"""run_async: the interpreter on the caller's running event loop, in real time.

Programs are the same as under `run`. This is the bridge to the loop: awaitables that tasks wait
for, timers, and cancellation from outside.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from slotwise.effects._custom import Handler
from slotwise.effects._effects import Effect
from slotwise.effects._program import Program, as_program
from slotwise.effects._run import conclude, drive
from slotwise.effects._scheduler import Scheduler
from slotwise.effects._tasks import Task

T = TypeVar("T")


async def run_async(
    program: Program[T] | Effect[T], handlers: Mapping[Any, Handler] | None = None
) -> T:
    """Run a program and everything it spawns to the end, and return its value.

    Other tasks of the event loop run whenever all of the program's ready tasks
    have had a turn. Cancelling it cancels the program's tasks, and is complete when their
    ``finally`` blocks have ended.

    Raises:
        DeadlockError: nothing could ever run again.
    """
    root = as_program(program, "run_async")
    ready: deque[Task[Any]] = deque()
    bridge = Bridge(ready)
    scheduler = Scheduler(ready, bridge.take, handlers, clock=bridge.loop.time)
    bridge.attach(scheduler)
    for _ in drive(scheduler, root):
        try:
            await bridge.pause()
        except asyncio.CancelledError as cancelled:
            # Only the first one stops the run, which then ends when all tasks have.
            if scheduler.abort is None:
                scheduler.abort = cancelled
        scheduler.fire(scheduler.now())
        bridge.turns = len(ready)
    return conclude(scheduler)  # type: ignore[no-any-return]


class Bridge:
    """Connects a scheduler with the event loop that it runs on."""

    def __init__(self, ready: deque[Task[Any]]) -> None:
        self.loop = asyncio.get_running_loop()
        self.ready = ready
        self.turns = 1  # one for the root
        self.alarm: asyncio.Future[None] | None = None

    def attach(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        scheduler.bridge = self.wait_for

    def take(self) -> Task[Any]:
        """Return the next task, until it is the event loop's turn."""
        if not self.turns:
            raise IndexError
        self.turns -= 1
        return self.ready.popleft()

    async def pause(self) -> None:
        """Let the event loop run until a task is ready or a timer is due."""
        if self.ready:
            await asyncio.sleep(0)
            return
        timer = None
        self.alarm = self.loop.create_future()
        try:
            when = self.scheduler.timers.earliest()
            if when is not None:
                timer = self.loop.call_at(when, self.end_pause)
            await self.alarm
        finally:
            self.alarm = None
            if timer is not None:
                timer.cancel()

    def end_pause(self) -> None:
        if self.alarm is not None and not self.alarm.done():
            self.alarm.set_result(None)

    def wait_for(self, task: Task[Any], awaitable: Awaitable[Any]) -> Awaiting:
        return Awaiting(self, task, asyncio.ensure_future(awaitable, loop=self.loop))


class Awaiting:
    """A task that is parked on an awaitable."""

    __slots__ = ("bridge", "future", "task")

    def __init__(self, bridge: Bridge, task: Task[Any], future: asyncio.Future[Any]) -> None:
        self.bridge = bridge
        self.task = task
        self.future = future
        bridge.scheduler.awaiting += 1
        future.add_done_callback(self.arrived)

    def withdraw_later(self) -> None:
        """Cancel the awaitable; the task is told when that has ended.

        It may still end with a result, such as a slot that was granted at the same moment. That
        must not be lost, so the task gets it, and sees its cancellation at its next switch.
        """
        self.future.cancel()

    def _withdraw(self, _task: Task[Any]) -> None:
        raise AssertionError("a task that awaits is cancelled by way of withdraw_later")

    def _awaited(self) -> object:
        return self.future

    def arrived(self, future: asyncio.Future[Any]) -> None:
        scheduler, task = self.bridge.scheduler, self.task
        scheduler.awaiting -= 1
        if future.cancelled():
            if task._pending is not None:
                error: BaseException = task._pending
                task._pending = None
            else:
                error = asyncio.CancelledError("what the program awaited was cancelled")
            scheduler.throw(task, error)
        elif (failure := future.exception()) is not None:
            scheduler.throw(task, failure)
        else:
            scheduler.wake(task, future.result())
        self.bridge.end_pause()
