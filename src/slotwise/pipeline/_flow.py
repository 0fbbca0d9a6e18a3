"""Decide what a run does next: what to pull, what may start, whether there is room.

There is no task, thread, lock or waiting in here: the workers (`_task_workers`, `_thread_workers`)
do that, and call these methods one at a time.

How much a run holds, whatever the amount of work:
  * at most ``limit`` items run;
  * at most ``2 * limit`` are between the source and the consumer: those that run,
    and one finished result behind each of them, so that workers don't wait for a consumer that is
    only irregular;
  * ``priority`` and ``group_key`` look ahead over at most ``limit`` items more;
  * with ``semaphore``, items that wait for their slots or release them count as running, so that
    round trips to a server overlap.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from enum import Enum
from typing import Any

from slotwise._bounded.memory_guard import Pressure
from slotwise._core.redaction import redacted_repr
from slotwise._core.semaphore import Semaphore
from slotwise.errors import SlotwiseError
from slotwise.pipeline._lookahead import Lookahead, WorkerAssignments
from slotwise.pipeline._report import FAILURES_KEPT, MemoryLimitExceeded, Report, not_an_end
from slotwise.pipeline._results import Results, WorkItem
from slotwise.pipeline._settings import Settings

_PROGRESS_EVERY = 0.1


class NextStep(Enum):
    """What a worker that is looking for work should do."""

    PULL = "take an item from the source"
    AHEAD = "start the best of the items that were pulled ahead"
    WAIT = "wait until something changes"
    OVER = "start nothing more"
    START = "start it"


class Flow:
    """The state of one run."""

    # Between any two calls:
    #   F1  report.in_flight is the number of items between begin() and their end
    #   F2  in_use is the sum of their weights, at most limit unless a semaphore counts them
    #   F3  once over is True, nothing is pulled; once stopped is True,
    #       no item is begun either
    #   F4  asking is the number of items between ask() and asked()

    def __init__(self, settings: Settings, *, consumed: bool) -> None:
        self.settings = settings
        self.limit = settings.limit
        self.report = Report(settings.limit, settings.memory_guard)
        self.over = False
        self.stopped = False
        self.exhausted = False
        self.error: BaseException | None = None
        self.in_use = 0
        self.results = Results(
            window=2 * settings.limit, consumed=consumed, ordered=settings.ordered
        )
        self.assignments = (
            WorkerAssignments(settings.limit) if settings.group_key is not None else None
        )
        self._queued = 0  # items that wait for the workers of their groups
        self._ahead = Lookahead(settings.priority) if settings.priority is not None else None
        self._pulled = 0
        self.report._queue = self._queue_depth
        self._asking = 0  # items that wait for slots of the semaphore
        self._next_ask = 0.0
        self._next_start = 0.0
        self._next_progress = 0.0
        self._guard = settings.memory_guard
        self._weight = settings.weight
        # The local limit counts weights, unless a semaphore does.
        self._counts_weight = settings.semaphore is None and settings.weight != 1
        # Whether an item may start as soon as it is pulled.
        self.unconditional = not (
            self._guard is not None
            or self._counts_weight
            or settings.max_per_second is not None
            or settings.semaphore is not None
        )

    # ---------------------------------------------------------- what comes next

    def next_step(self) -> NextStep:
        """PULL, AHEAD, WAIT or OVER."""
        if self.over:
            return NextStep.OVER
        if self._guard is not None:
            held = self._held_by_memory()
            if held is not None:
                return held
        if self._ahead is not None:
            if not self.exhausted and len(self._ahead) < self.limit:
                return NextStep.PULL
            if not len(self._ahead):
                self.over = True
                return NextStep.OVER
            return NextStep.AHEAD if self._has_room() else NextStep.WAIT
        if self.exhausted:
            # Items that wait for the workers of their groups are started by these.
            if self.assignments is None:
                self.over = True
            return NextStep.OVER
        if self.assignments is not None and self._queued >= self.limit:
            return NextStep.WAIT
        return NextStep.PULL if self._has_room() else NextStep.WAIT

    def _held_by_memory(self, *, asking: bool = True) -> NextStep | None:
        """Return WAIT, OVER, or None if an item may go on; ``asking`` counts waits too."""
        assert self._guard is not None
        pressure = self._guard.check()
        if pressure is Pressure.FREE:
            return None
        if pressure is Pressure.STOP:
            self.finish(MemoryLimitExceeded(f"stopped: {self._guard.describe()}"))
            return NextStep.OVER
        if self.report.in_flight or (asking and self._asking):
            self.report._hold_back()
            return NextStep.WAIT
        return None

    def _has_room(self) -> bool:
        if self.results.have_room:
            return True
        self.report._hold_back()
        return False

    @property
    def looked_ahead(self) -> bool:
        """Whether an item could be started without pulling another."""
        return self._ahead is not None and len(self._ahead) > 0 and self._has_room()

    def take_in(self, item: Any) -> WorkItem | None:
        """Take an item from the source; return what to start, if that is decided by now.

        A ``weight``, ``priority`` or ``group_key`` that raises, or returns a weight
        that never fits, fails this one item.
        """
        settings = self.settings
        self._pulled += 1
        if self._pulled == settings.max_items:
            self.exhausted = True
        try:
            work = WorkItem(
                item, self._weight if isinstance(self._weight, int) else self._weigh(item)
            )
            if self._ahead is not None:
                self._ahead.add(work)
                return None
            if self.assignments is not None and settings.group_key is not None:
                work.key = settings.group_key(item)
                work.worker = self.assignments.assign(work.key)
                self._queued += 1
        except Exception as error:
            self._count_failure(item, error)
            return None
        self.results.let_in(work)
        return work

    def best(self) -> WorkItem:
        """Remove and return the item with the highest priority, the first of equals."""
        assert self._ahead is not None
        work = self._ahead.best()
        self.results.let_in(work)
        return work

    def left_queue(self) -> None:
        self._queued -= 1

    def _queue_depth(self) -> int:
        ahead = 0 if self._ahead is None else len(self._ahead)
        return ahead + self._queued + self._asking + self.results.waiting

    def _weigh(self, item: Any) -> int:
        assert not isinstance(self._weight, int)
        weight: Any = self._weight(item)
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise ValueError(
                f"the weight of an item must be an int of at least 1, not {redacted_repr(weight)}"
            )
        semaphore, most = self.settings.semaphore, self.limit
        if isinstance(semaphore, Semaphore):
            most = semaphore.value
        elif semaphore is not None:
            return weight  # the limit itself refuses what never fits it
        if weight > most:
            raise ValueError(f"a weight of {weight} never fits into a limit of {most}")
        return weight

    # ------------------------------------------------------------- may it start

    def may_start(self, work: WorkItem, *, has_slots: bool = False) -> NextStep | float:
        """Return START, WAIT, OVER or seconds to wait; with a semaphore, START is to ask it.

        An item that ``has_slots`` got them when others released theirs, so the pace and the memory
        are checked again.
        """
        if self.stopped:
            return NextStep.OVER
        if self._guard is not None:
            held = self._held_by_memory(asking=not has_slots)
            if held is not None:
                return held
        if self._counts_weight and self.in_use + work.weight > self.limit:
            # An item that doesn't fit is not passed: light items would starve a heavy one.
            return NextStep.WAIT
        if self.settings.max_per_second is None:
            return NextStep.START
        # As many ask as there are workers: on a distant server, an item that is queued early has
        # its slot a round trip earlier than one that asks when a slot is free.
        asks = self.settings.semaphore is not None and not has_slots
        left = (self._next_ask if asks else self._next_start) - time.monotonic()
        return left if left > 0 else NextStep.START

    def ask(self) -> None:
        """Note that an item waits for its slots of the semaphore, until `asked`."""
        self._asking += 1
        if self.settings.max_per_second is not None:
            self._next_ask = time.monotonic() + 1 / self.settings.max_per_second

    def asked(self) -> None:
        self._asking -= 1

    def refused(self, work: WorkItem, error: Exception) -> None:
        """Handle an item that the semaphore gave no slots.

        If the item wants more than the semaphore has after a resize, only that item fails. If the
        semaphore is closed, timed out or unreachable, the run ends.
        """
        if isinstance(error, ValueError) and not isinstance(error, SlotwiseError):
            self.reject(work, error)
        else:
            self.drop(work)
            self.finish(error)

    def begin(self, work: WorkItem) -> None:
        report = self.report
        if report._waiting_since is not None:
            report._go_on()
        report.started += 1
        report.in_flight += 1
        self.in_use += work.weight
        report._moved(work.weight)
        if self.settings.max_per_second is not None:
            self._next_start = time.monotonic() + 1 / self.settings.max_per_second

    # ------------------------------------------------------------------ the end

    def succeed(self, work: WorkItem, result: Any) -> None:
        self._ended(work)
        self.report.done += 1
        self.results.add(work, result)

    def fail(self, work: WorkItem, error: BaseException) -> None:
        self._ended(work, type(error))
        self._count_failure(work.item, error)

    def cancelled(self, work: WorkItem) -> None:
        self._ended(work, CancelledError)
        self.report.cancelled += 1

    def drop(self, work: WorkItem) -> None:
        """Drop an admitted item that will not be started."""
        work.raised = CancelledError
        self.results.give_up(work)

    def reject(self, work: WorkItem, error: BaseException) -> None:
        """Count an admitted item that failed before it began."""
        self.results.give_up(work)
        if self.assignments is not None:
            self.assignments.ended(work.key, work.worker)
        self._count_failure(work.item, error)

    def _ended(self, work: WorkItem, raised: type[BaseException] | None = None) -> None:
        if raised is not None:
            work.raised = raised
            self.results.give_up(work)
        report = self.report
        report.in_flight -= 1
        self.in_use -= work.weight
        report._moved(-work.weight)
        if self.assignments is not None:
            self.assignments.ended(work.key, work.worker)

    def _count_failure(self, item: Any, error: BaseException) -> None:
        error = not_an_end(error)
        self.report.failed += 1
        on_error = self.settings.on_error
        if on_error == "raise" or not isinstance(error, Exception | CancelledError):
            self.finish(error)
        elif on_error == "collect" and len(self.report.failures) < FAILURES_KEPT:
            self.report.failures.append((item, error))

    def source_failed(self, error: BaseException) -> None:
        """Note that the source raised; items pulled before that still run."""
        self.exhausted = True
        if self.error is None and not self.stopped:
            self.error = not_an_end(error)

    def finish(self, error: BaseException | None = None) -> None:
        """Start nothing more; the run ends with the first error."""
        # Not "if it is over": it is over with the source's last item, while items still run.
        if not self.stopped:
            self.stopped = True
            if self.error is None and error is not None:
                self.error = not_an_end(error)
        self.over = self.exhausted = True

    # ------------------------------------------------------------- the consumer

    def forget_results(self) -> None:
        """Drop the results: nobody will take them."""
        self.results.clear()
        self._queued = 0
        if self._ahead is not None:
            self._ahead.clear()

    def progress_is_due(self) -> bool:
        now = time.monotonic()
        if self.settings.on_progress is None or now < self._next_progress:
            return False
        self._next_progress = now + _PROGRESS_EVERY
        return True
