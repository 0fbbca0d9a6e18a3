"""GroupedTaskWorkers: for runs with ``group_key``, tasks that each run items of their groups.

One task does nothing but pull, and hands each item to the worker of its group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from slotwise.pipeline._flow import Flow
from slotwise.pipeline._task_workers import TaskWorkers, this_task
from slotwise.pipeline._work_item import WorkItem


class GroupedTaskWorkers(TaskWorkers):
    """The workers of one run with ``group_key``."""

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Awaitable[Any]],
        source: Iterator[Any] | AsyncIterator[Any],
    ) -> None:
        super().__init__(flow, fn, source)
        self._queues: dict[int, deque[WorkItem]] = {}
        self._admission = asyncio.Lock()
        self._admitted: asyncio.Task[Any] | None = None  # the worker that waits to start an item

    def _begin(self) -> None:
        self._add(self._dispatch())

    def _all_left(self) -> None:
        self.flow.over = True

    def _waiting(self) -> list[asyncio.Task[Any] | None]:
        return [*super()._waiting(), self._admitted]

    async def _dispatch(self) -> None:
        self._leader = this_task()
        try:
            while (work := await self._next()) is not None:
                queue = self._queues.get(work.worker)
                if queue is None:
                    self._queues[work.worker] = deque([work])
                    self._add(self._serve_groups(work.worker))
                else:
                    queue.append(work)
                    self._nudge()
        except asyncio.CancelledError as error:
            if self.flow.stopped:
                raise
            self.flow.source_failed(error)  # cancelled from outside: the run must not look complete
        finally:
            self._leader = None
            self._nudge()

    async def _serve_groups(self, number: int) -> None:
        """One worker, for all items of its groups, in the source's order."""
        queue = self._queues[number]
        # Until no more items will come.
        while queue or (self._leader is not None and not self.flow.stopped):
            try:
                if queue:
                    await self._start(queue.popleft())
                else:
                    await self._changed()
            except asyncio.CancelledError:
                if self.flow.stopped:
                    raise
                await self._forget_cancellation()  # from outside; its groups have no other worker

    async def _start(self, work: WorkItem) -> None:
        self.flow.left_queue()
        task = this_task()
        try:
            await self._admission.acquire()
        except asyncio.CancelledError as error:
            self._interrupted(work, error)
            raise
        self._admitted = task
        try:
            admitted = await self._admit(work)
        finally:
            self._admitted = None
            self._admission.release()
        self._nudge()
        if admitted and self._semaphore is None:
            await self._run(work, task)
        elif admitted:
            await self._run_with_slots(work, task)
