"""TaskLanes: a `TaskCrew` whose items have groups, each with a worker of its own.

One task does nothing but pull, and hands each item to the worker of its group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from slotwise.pipeline.flow import Flow
from slotwise.pipeline.start import Start
from slotwise.pipeline.tasks import TaskCrew


class TaskLanes(TaskCrew):
    """The workers of one run with ``group_key``."""

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Awaitable[Any]],
        source: Iterator[Any] | AsyncIterator[Any],
    ) -> None:
        super().__init__(flow, fn, source)
        self._queues: dict[int, deque[Start]] = {}
        self._admission = asyncio.Lock()
        self._admitted: asyncio.Task[Any] | None = None  # the lane that waits to start an item

    def _begin(self) -> None:
        self._add(self._dispatch())

    def _all_left(self) -> None:
        self.flow.over = True

    def _waiting(self) -> list[asyncio.Task[Any] | None]:
        return [*super()._waiting(), self._admitted]

    async def _dispatch(self) -> None:
        self._leader = asyncio.current_task()
        try:
            while (start := await self._next()) is not None:
                queue = self._queues.get(start.lane)
                if queue is None:
                    self._queues[start.lane] = deque([start])
                    self._add(self._lane(start.lane))
                else:
                    queue.append(start)
                    self._nudge()
        finally:
            self._leader = None
            self._nudge()

    async def _lane(self, number: int) -> None:
        """One worker, for all items of its groups, in the source's order."""
        queue = self._queues[number]
        while True:
            if not queue:
                if self._leader is None:  # nothing will come any more
                    return
                await self._changed()
                continue
            start = queue.popleft()
            self.flow.left_lane_queue()
            async with self._admission:
                self._admitted = asyncio.current_task()
                try:
                    if not await self._admit(start):
                        self.flow.drop(start)
                        return
                finally:
                    self._admitted = None
            self._nudge()
            await self._run(start)
