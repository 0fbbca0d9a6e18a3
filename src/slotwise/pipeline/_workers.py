"""Workers: how items go through a run, written once for tasks and for threads.

One worker at a time leads: it pulls the next item, waits until that may start, gives up the lead,
takes slots for it if there is a semaphore, and runs it. With ``group_key`` one worker does nothing
but lead, and each of the others runs the items of its groups, in the source's order.

What to pull and whether it may start is decided by `_flow`. How a worker waits, pulls and calls
the function is in `_task_workers` and `_thread_workers`: a thread blocks where a task is suspended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import CancelledError, sleep
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

from slotwise.pipeline._flow import Flow, NextStep
from slotwise.pipeline._results import WorkItem

Source: TypeAlias = Iterator[Any] | AsyncIterator[Any]
# Releases an item's slots; it gets the type of the exception, if the work failed.
Release: TypeAlias = "Callable[[type[BaseException] | None], Awaitable[object]]"

# A function that never awaits yields to the loop after this many items.
_ITEMS_PER_TURN = 256
NOT_YET: Final = object()


class Workers(ABC):
    """The workers of one run."""

    _are_tasks: ClassVar[bool]

    def __init__(self, flow: Flow, fn: Callable[[Any], Any], source: Source) -> None:
        self.flow = flow
        self.opened = False
        self._fn = fn
        self._source = source
        # The other one is not an end but a bug in the source.
        self._no_more: type[Exception] = (
            StopAsyncIteration if isinstance(source, AsyncIterator) else StopIteration
        )
        # The caller's, as it was when the run was opened. Each item runs in a copy of it,
        # and the source in one copy for its whole life, whichever worker pulls.
        self._context = Context()
        self._pulling = Context()
        self._pull_now: Callable[[], Any] | None = None
        self._semaphore = flow.settings.semaphore
        self._leader: object = None
        self._will_start_worker = False
        self._cancelling = False
        self._streak = 0
        self._sleepers: list[Any] = []
        self._listeners: list[Callable[[], None]] = []  # told of the next result, or of the end
        self._tells_of_each = flow.settings.on_progress is not None
        self._queues: dict[int, deque[WorkItem]] = {}  # of the workers of groups
        self._admitting = False  # whether one of these waits to start an item

    def open(self) -> None:
        if not self.opened:
            self.opened = True
            self._context = copy_context()
            self._pulling = self._context.copy()
            if self._pull_now is None and not isinstance(self._source, AsyncIterator):
                self._pull_now = partial(self._pulling.run, self._source.__next__)
            self.flow.report._begin()
            if self.flow.assignments is None:
                self._start_worker()
            else:
                self._start(self._dispatch())

    # ------------------------------------------------- what tasks and threads do in their own way

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing runs and nothing will be started."""

    @abstractmethod
    def take(self) -> Any:
        """Return the next result, or NOTHING."""

    @abstractmethod
    def listen(self, wake: Callable[[], None], *, results: bool = True) -> bool:
        """Call ``wake`` at the next result or end.

        Return False if there is one already; without ``results``, if the end is.
        """

    @abstractmethod
    def stop(self, *, cancel: bool = False) -> None:
        """Start nothing more; with ``cancel``, also cancel what runs, if it can be cancelled.

        In any thread, even when the event loop is gone.
        """

    @abstractmethod
    def _start_worker(self) -> None: ...

    @abstractmethod
    def _start(self, work: Coroutine[Any, Any, None]) -> object:
        """Start a worker that does this; the run ends if that is impossible."""

    @abstractmethod
    def _me(self) -> Any:
        """Return the current worker, a task or a thread."""

    @abstractmethod
    def _await_lead(self) -> bool:
        """Wait until nobody leads; False if this worker is not needed any more."""

    @abstractmethod
    def _pass_lead(self) -> None:
        """Let another worker lead."""

    async def _pull(self) -> Any:
        """Return the next item, where there is no ``_pull_now``; NOT_YET to start another."""
        raise NotImplementedError

    @abstractmethod
    async def _changed(self, timeout: float | None = None) -> None:
        """Wait until something changes, at most ``timeout`` seconds."""

    @abstractmethod
    def _nudge(self) -> None:
        """Wake those that wait for a change."""

    @abstractmethod
    def _call(self, item: Any) -> Awaitable[Any]:
        """Call the function in a copy of the caller's context."""

    @abstractmethod
    async def _take_slots(self, slots: int) -> Release: ...

    @abstractmethod
    def _give_up(self) -> None:
        """End the run early; cancel what runs only if an item failed."""

    @abstractmethod
    def _report_progress(self, hook: Callable[[Any], object]) -> None: ...

    @abstractmethod
    async def _forget_cancellation(self) -> None:
        """Clear a cancellation from outside: it failed one item, not the next one."""

    # ------------------------------------------------------------------ leading

    async def _work(self) -> None:
        me = self._me()
        # Runs for every item: saves a coroutine where there is nothing to wait for.
        lead = self._next if self.flow.unconditional else self._lead
        while self._leader is None or self._await_lead():
            self._leader = me
            try:
                if self._streak >= _ITEMS_PER_TURN and self._are_tasks:
                    self._streak = 0
                    await sleep(0)
                work = await lead()
            finally:
                self._leader = None
                if not self._will_start_worker:
                    self._pass_lead()
            if work is None:
                return
            if self._semaphore is None:
                await self._run(work, me)
            else:
                await self._run_with_slots(work, me)
            self._streak += 1

    async def _lead(self) -> WorkItem | None:
        """Return the next item once it may start; None if there is none."""
        work = await self._next()
        return work if work is not None and await self._wait_to_start(work) else None

    async def _next(self) -> WorkItem | None:
        """Return the next item once it is decided which; None if there is none."""
        flow, pull = self.flow, self._pull_now
        while True:
            step = flow.next_step()
            if step is NextStep.PULL:
                try:
                    item = await self._pull() if pull is None else pull()
                except self._no_more:
                    flow.exhausted = True
                except CancelledError as error:
                    if flow.stopped:
                        raise
                    flow.source_failed(error)
                    await self._forget_cancellation()
                except Exception as error:
                    flow.source_failed(error)
                else:
                    if item is not NOT_YET and not flow.over:
                        work = flow.take_in(item)
                        if work is not None:
                            return work
                    elif flow.looked_ahead:
                        return flow.best()
                    elif item is NOT_YET:
                        await self._changed()
            elif step is NextStep.AHEAD:
                return flow.best()
            elif step is NextStep.WAIT:
                await self._changed()
            else:
                if flow.stopped:
                    self._give_up()
                return None

    # ------------------------------------------------------------------- groups

    async def _dispatch(self) -> None:
        """Pull, and hand each item to the worker of its group."""
        self._leader = self._me()
        try:
            while (work := await self._next()) is not None:
                queue = self._queues.get(work.worker)
                if queue is None:
                    self._queues[work.worker] = deque([work])
                    self._start(self._serve_groups(work.worker))
                else:
                    queue.append(work)
                    self._nudge()
        except CancelledError as error:
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
                    await self._run_of_group(queue.popleft())
                else:
                    await self._changed()
            except CancelledError:
                if self.flow.stopped:
                    raise
                await self._forget_cancellation()  # from outside; its groups have no other worker

    async def _run_of_group(self, work: WorkItem) -> None:
        me = self._me()
        self.flow.left_queue()
        try:
            while self._admitting:
                await self._changed()
        except CancelledError as error:
            await self._interrupted(work, error)
            return
        self._admitting = True
        try:
            admitted = await self._wait_to_start(work)
        finally:
            self._admitting = False
            self._nudge()
        if admitted and self._semaphore is None:
            await self._run(work, me)
        elif admitted:
            await self._run_with_slots(work, me)

    # ------------------------------------------------------------------ running

    async def _wait_to_start(self, work: WorkItem, *, has_slots: bool = False) -> bool:
        """Wait until ``work`` may start, or ask for its slots; False if it never will."""
        while True:
            step = self.flow.may_start(work, has_slots=has_slots)
            if step is NextStep.START:
                return True
            if step is NextStep.OVER:
                self.flow.drop(work)
                self._item_ended()
                return False
            try:
                await self._changed(step if isinstance(step, float) else None)
            except CancelledError as error:
                await self._interrupted(work, error)
                return False

    async def _interrupted(self, work: WorkItem, error: CancelledError) -> None:
        """Handle the cancellation of a worker that waits to start: ours, or one from outside."""
        is_ours = self.flow.stopped
        if is_ours:
            self.flow.drop(work)
        else:
            self.flow.reject(work, error)
        self._item_ended()
        if is_ours:
            raise error
        await self._forget_cancellation()

    async def _run_with_slots(self, work: WorkItem, me: Any) -> None:
        release = await self._acquire(work)
        if release is None:
            return
        try:
            try:
                if await self._wait_to_start(work, has_slots=True):
                    await self._run(work, me)
            finally:
                await release(getattr(work, "raised", None))
        except Exception as error:  # the semaphore's: the flow handles those of the item
            self.flow.finish(error)
            self._item_ended()

    async def _acquire(self, work: WorkItem) -> Release | None:
        """Take the item's slots; return how to release them, or None if it gets none."""
        flow = self.flow
        flow.ask()
        try:
            return await self._take_slots(work.weight)
        except CancelledError as error:
            await self._interrupted(work, error)
        except Exception as error:
            flow.refused(work, error)
        finally:
            flow.asked()
            self._item_ended()
        return None

    async def _run(self, work: WorkItem, me: Any) -> None:
        flow = self.flow
        flow.begin(work)
        try:
            result = await self._call(work.item)
        except CancelledError as error:
            if self._cancelling:
                flow.cancelled(work)
                raise
            flow.fail(work, error)
        except BaseException as error:
            flow.fail(work, error)
            if not isinstance(error, Exception):  # SystemExit or KeyboardInterrupt
                raise
        else:
            flow.succeed(work, result)
        finally:
            if self._sleepers or self._listeners or flow.stopped or self._tells_of_each:
                self._item_ended()
        if self._are_tasks and me.cancelling() and not self._cancelling:
            await self._forget_cancellation()

    def _item_ended(self) -> None:
        flow = self.flow
        hook = flow.settings.on_progress
        if hook is not None and flow.progress_is_due():
            try:
                self._report_progress(hook)
            except Exception as error:
                flow.finish(error)
        if flow.stopped:
            self._give_up()
        if flow.results.first_is_ready:
            self._tell()
        self._nudge()

    def _tell(self) -> None:
        listeners, self._listeners = self._listeners, []
        for wake in listeners:
            wake()
