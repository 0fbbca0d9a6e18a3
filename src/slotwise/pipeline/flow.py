"""Flow: the decisions of a run. What comes next, may it start, is there room for it.

No task, thread, lock or waiting is in here: crews (`tasks`, `threads`) do that,
and call these methods one at a time.

How much a run holds, whatever the amount of work:
  * at most ``limit`` items run;
  * at most ``2 * limit`` are between the source and the consumer: those that run,
    and one finished result behind each of them, so that workers need not wait for
    a consumer that is only unsteady;
  * ``priority`` and ``group_key`` look ahead over at most ``limit`` items more.
"""

from __future__ import annotations

import heapq
import itertools
import time
from asyncio import CancelledError
from collections import OrderedDict, deque
from enum import Enum
from typing import Any, Final

from slotwise.pipeline.errors import MemoryLimitExceeded
from slotwise.pipeline.guard import Pressure
from slotwise.pipeline.report import FAILURES_KEPT, Report
from slotwise.pipeline.settings import Settings
from slotwise.values import AcquisitionResult

# Groups that have no item under way are remembered too, so that their next items
# find the same worker again; this many per worker.
_IDLE_GROUPS = 16
_PROGRESS_EVERY = 0.1


class Step(Enum):
    """What a worker that looks for work should do."""

    PULL = "take an item from the source"
    AHEAD = "start the best of the items that were looked at"
    WAIT = "wait until something changes"
    OVER = "nothing is started any more"
    START = "start it"


class _Nothing(Enum):
    NOTHING = "no result is ready"


NOTHING: Final = _Nothing.NOTHING
_UNFINISHED: Final = object()
_WITHOUT_RESULT: Final = object()


class Start:
    """One item on its way."""

    __slots__ = ("acquisition", "cell", "item", "key", "lane", "weight")

    def __init__(self, item: Any, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.acquisition: AcquisitionResult | None = None
        self.cell: list[Any] | None = None
        self.lane = 0
        self.key: Any = None


class Flow:
    """The state of one run."""

    # Between any two calls:
    #   F1  report.in_flight is the number of items between begin() and their end
    #   F2  in_use is the sum of their weights, at most limit
    #   F3  outstanding counts what was let in and has neither failed nor been taken
    #   F4  once over is True, no item is begun

    def __init__(self, settings: Settings, *, consumed: bool) -> None:
        self.settings = settings
        self.limit = settings.limit
        self.report = Report(settings.limit, settings.memory_guard)
        self.over = False
        self._finished = False
        self.exhausted = False
        self.error: BaseException | None = None
        self.in_use = 0
        self.outstanding = 0
        self.queued = 0
        self.window = 2 * settings.limit
        self._consumed = consumed
        self._pulled = 0
        self._results: deque[Any] = deque()
        self._cells: deque[list[Any]] = deque()
        self._ordered = settings.ordered and consumed
        self._ahead: list[tuple[Any, int, Start]] = []
        self._tickets = itertools.count()
        self.lanes = Lanes(settings.limit) if settings.group_key is not None else None
        self._next_start = 0.0
        self._next_progress = 0.0
        self._guard = settings.memory_guard
        self._priority = settings.priority
        self._weight = settings.weight
        self._max_items = settings.max_items
        # The local limit counts weights, unless a semaphore does.
        self._counts_weight = settings.semaphore is None and settings.weight != 1
        # Whether an item may start as soon as it is there.
        self.unconditional = not (
            self._guard is not None
            or self._counts_weight
            or settings.max_per_second is not None
            or settings.semaphore is not None
        )

    # ---------------------------------------------------------- what comes next

    def next_step(self) -> Step:
        """PULL, AHEAD, WAIT or OVER."""
        if self.over:
            return Step.OVER
        if self._guard is not None:
            held = self._held_by_memory()
            if held is not None:
                return held
        if self._priority is not None:
            if not self.exhausted and len(self._ahead) < self.limit:
                return Step.PULL
            if not self._ahead:
                self.over = True
                return Step.OVER
            return Step.AHEAD if self._has_room() else Step.WAIT
        if self.exhausted:
            # Items that wait in lanes are started by their lanes.
            if self.lanes is None:
                self.over = True
            return Step.OVER
        if self.lanes is not None and self.queued >= self.limit:
            return Step.WAIT
        return Step.PULL if self._has_room() else Step.WAIT

    def _held_by_memory(self) -> Step | None:
        assert self._guard is not None
        pressure = self._guard.check()
        if pressure is Pressure.FREE:
            return None
        if pressure is Pressure.STOP:
            self.finish(MemoryLimitExceeded(f"stopped: {self._guard.describe()}"))
            return Step.OVER
        if self.report.in_flight:
            self.report._hold_back()
            return Step.WAIT
        return None

    def _has_room(self) -> bool:
        if self._consumed and self.outstanding >= self.window:
            self.report._hold_back()
            return False
        return True

    @property
    def looked_ahead(self) -> bool:
        """Whether an item is at hand that could be started without another pull."""
        return bool(self._ahead) and self._has_room()

    def take_in(self, item: Any) -> Start | None:
        """An item came from the source; what to start, if that is decided by now.

        A ``weight``, ``priority`` or ``group_key`` that raises, or gives a weight
        that never fits, fails this one item.
        """
        self._pulled += 1
        if self._pulled == self._max_items:
            self.exhausted = True
        settings = self.settings
        try:
            start = Start(
                item, self._weight if isinstance(self._weight, int) else self._weigh(item)
            )
            if self._priority is not None:
                rank = _Reversed(self._priority(item))
                if self._ahead:
                    rank < self._ahead[0][0]  # noqa: B015  # raises here, not inside the heap
                # Equal ranks keep the source's order; heapq's least is our highest.
                heapq.heappush(self._ahead, (rank, next(self._tickets), start))
                self.report.queue_depth += 1
                return None
            if self.lanes is not None and settings.group_key is not None:
                start.key = settings.group_key(item)
                start.lane = self.lanes.assign(start.key)
                self.queued += 1
                self.report.queue_depth += 1
        except Exception as error:
            self._count_failure(item, error)
            return None
        self._let_in(start)
        return start

    def best(self) -> Start:
        """The highest priority of what was looked at, the first of equals."""
        start = heapq.heappop(self._ahead)[2]
        self.report.queue_depth -= 1
        self._let_in(start)
        return start

    def left_lane_queue(self) -> None:
        self.queued -= 1
        self.report.queue_depth -= 1

    def _let_in(self, start: Start) -> None:
        self.outstanding += 1
        if self._ordered:
            start.cell = [_UNFINISHED]
            self._cells.append(start.cell)

    def _weigh(self, item: Any) -> int:
        assert not isinstance(self._weight, int)
        weight: Any = self._weight(item)
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise ValueError(f"the weight of an item must be an int of at least 1, not {weight!r}")
        semaphore = self.settings.semaphore
        most = self.limit if semaphore is None else semaphore.value
        if weight > most:
            raise ValueError(f"a weight of {weight} never fits into a limit of {most}")
        return weight

    # ------------------------------------------------------------- may it start

    def may_start(self, start: Start) -> Step | float:
        """START, WAIT, OVER, or how many seconds to wait."""
        if self.over:
            return Step.OVER
        if self._guard is not None:
            held = self._held_by_memory()
            if held is not None:
                return held
        if self._counts_weight and self.in_use + start.weight > self.limit:
            # Nobody passes the one that does not fit: light items would starve a heavy one.
            return Step.WAIT
        if self.settings.max_per_second is not None:
            now = time.monotonic()
            if now < self._next_start:
                return self._next_start - now
        return Step.START

    def begin(self, start: Start) -> None:
        report = self.report
        if report._waiting_since is not None:
            report._go_on()
        report.started += 1
        report.in_flight += 1
        self.in_use += start.weight
        report._moved(start.weight)
        if self.settings.max_per_second is not None:
            self._next_start = time.monotonic() + 1 / self.settings.max_per_second

    # ------------------------------------------------------------------ the end

    def succeed(self, start: Start, result: Any) -> None:
        self._ended(start)
        self.report.done += 1
        if start.cell is not None:
            start.cell[0] = result
            self.report.queue_depth += 1
        elif self._consumed:
            self._results.append(result)
            self.report.queue_depth += 1

    def fail(self, start: Start, error: BaseException) -> None:
        self._ended(start)
        self._without_result(start)
        self._count_failure(start.item, error)

    def cancelled(self, start: Start) -> None:
        self._ended(start)
        self._without_result(start)
        self.report.cancelled += 1

    def drop(self, start: Start) -> None:
        """It was let in and will not be started."""
        self._without_result(start)

    def _ended(self, start: Start) -> None:
        report = self.report
        report.in_flight -= 1
        self.in_use -= start.weight
        report._moved(-start.weight)
        if self.lanes is not None:
            self.lanes.ended(start.key, start.lane)
        if not self._consumed:
            self.outstanding -= 1

    def _without_result(self, start: Start) -> None:
        if start.cell is not None:
            start.cell[0] = _WITHOUT_RESULT
        elif self._consumed:
            self.outstanding -= 1

    def _count_failure(self, item: Any, error: BaseException) -> None:
        self.report.failed += 1
        on_error = self.settings.on_error
        if on_error == "raise" or not isinstance(error, Exception | CancelledError):
            self.finish(error)
        elif on_error == "collect" and len(self.report.failures) < FAILURES_KEPT:
            self.report.failures.append((item, error))

    def finish(self, error: BaseException | None = None) -> None:
        """Start nothing any more; what the first call gives is what the run ends with."""
        # Not "if it is over": it is over with the source's last item, while items still run.
        if not self._finished:
            self._finished = True
            self.error = error
        self.over = self.exhausted = True

    # ------------------------------------------------------------- the consumer

    def take(self) -> Any:
        """The next result, or NOTHING if none is ready."""
        if not self._ordered:
            if not self._results:
                return NOTHING
            self.outstanding -= 1
            self.report.queue_depth -= 1
            return self._results.popleft()
        while self._cells and self._cells[0][0] is not _UNFINISHED:
            result = self._cells.popleft()[0]
            self.outstanding -= 1
            if result is not _WITHOUT_RESULT:
                self.report.queue_depth -= 1
                return result
        return NOTHING

    @property
    def first_is_ready(self) -> bool:
        """Whether `take` would find something to do."""
        if not self._ordered:
            return bool(self._results)
        return bool(self._cells) and self._cells[0][0] is not _UNFINISHED

    def forget_results(self) -> None:
        """Nobody will take them."""
        self._results.clear()
        self._cells.clear()
        self._ahead.clear()
        self.report.queue_depth = 0

    def progress_is_due(self) -> bool:
        now = time.monotonic()
        if self.settings.on_progress is None or now < self._next_progress:
            return False
        self._next_progress = now + _PROGRESS_EVERY
        return True


class Lanes:
    """Which worker a group belongs to.

    A group keeps its worker while it has items under way, and among the groups
    that have none as long as it is one of the latest; a new group gets the worker
    that has been idle longest, or the next in turn if none is.
    """

    def __init__(self, count: int) -> None:
        self._load = [0] * count
        self._free = dict.fromkeys(range(count))  # an ordered set: idle longest first
        self._turn = itertools.cycle(range(count))
        self._busy: dict[Any, list[int]] = {}  # key -> [lane, items under way]
        self._idle: OrderedDict[Any, int] = OrderedDict()
        self._most_idle = _IDLE_GROUPS * count

    def assign(self, key: Any) -> int:
        known = self._busy.get(key)
        if known is not None:
            known[1] += 1
            lane = known[0]
        else:
            remembered = self._idle.pop(key, None)
            lane = self._choose() if remembered is None else remembered
            self._busy[key] = [lane, 1]
        self._load[lane] += 1
        self._free.pop(lane, None)
        return lane

    def ended(self, key: Any, lane: int) -> None:
        known = self._busy[key]
        known[1] -= 1
        if not known[1]:
            del self._busy[key]
            self._idle[key] = lane
            if len(self._idle) > self._most_idle:
                self._idle.popitem(last=False)
        self._load[lane] -= 1
        if not self._load[lane]:
            self._free[lane] = None

    def _choose(self) -> int:
        return next(iter(self._free)) if self._free else next(self._turn)


class _Reversed:
    """Turns the order of priorities round, whatever they are."""

    __slots__ = ("rank",)

    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.rank < self.rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.rank == other.rank)

    __hash__ = None  # type: ignore[assignment]
