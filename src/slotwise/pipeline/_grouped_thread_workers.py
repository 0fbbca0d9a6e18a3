"""GroupedThreadWorkers: for runs with ``group_key``, threads that each run items of their groups.

One more thread does nothing but pull, and hands each item to the thread of its group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from slotwise.pipeline._flow import Flow
from slotwise.pipeline._thread_workers import ThreadWorkers
from slotwise.pipeline._work_item import WorkItem


class GroupedThreadWorkers(ThreadWorkers):
    """The workers of one run with ``group_key``."""

    def __init__(
        self,
        flow: Flow,
        fn: Callable[[Any], Any],
        source: Iterator[Any] | AsyncIterator[Any],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(flow, fn, source, loop)
        self._queues: dict[int, deque[WorkItem]] = {}
        self._admitting = False

    def _begin(self) -> None:
        self._start_worker(self._dispatch)

    def _dispatch(self) -> None:
        self._leading = True
        try:
            while (work := self._lead()) is not None:
                queue = self._queues.get(work.worker)
                if queue is None:
                    self._queues[work.worker] = deque([work])
                    self._start_worker(self._serve_groups, work.worker)
                else:
                    queue.append(work)
                    self._changed.notify_all()
        finally:
            self._leading = False
            self._changed.notify_all()

    def _serve_groups(self, number: int) -> None:
        """One thread, for all items of its groups, in the source's order."""
        queue = self._queues[number]
        while True:
            while not queue:
                if not self._leading or self.flow.stopped:
                    return
                self._changed.wait()
            work = queue.popleft()
            self.flow.left_queue()
            while self._admitting:
                self._changed.wait()
            self._admitting = True
            try:
                admitted = self._admit(work)
            finally:
                self._admitting = False
                self._changed.notify_all()
            if admitted:
                self._run_with_slots(work)
