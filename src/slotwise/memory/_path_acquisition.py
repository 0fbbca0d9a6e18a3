"""MemoryPathAcquisition: one acquisition of MemoryPaths, which is its own context manager.

One object is the context manager, the ledger's claim and the caller's result,
as a MemoryAcquisition is, and for the same reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, cast

from slotwise._core import events, messages
from slotwise._core.limit import AcquisitionContext
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.paths import head_start_of, keys_by_name
from slotwise._core.results import AcquisitionResult
from slotwise._ledger.path_nodes import BasePathClaim, Node, Path
from slotwise._wait import clock
from slotwise._wait.at_once import DONE
from slotwise._wait.section import exclusive
from slotwise._wait.wakers import Waker
from slotwise.memory import _log
from slotwise.memory._context import MemoryContext

if TYPE_CHECKING:
    from slotwise._core.events import Pause
    from slotwise.memory._paths import MemoryPaths


class MemoryPathAcquisition(MemoryContext, BasePathClaim, AcquisitionResult, AcquisitionContext):
    """Slots of every tier, from their request to their end; made by `MemoryPaths.cm` alone."""

    __slots__ = (
        *("_outcomes", "arrived", "failure", "group", "key", "key_weight", "label", "needs"),
        *("nodes", "path", "paths", "ranges", "rank", "since", "task", "ticket", "timeout", "ttl"),
        "waker",
    )

    _outcomes: Outcomes | None
    key: int | None
    paths: MemoryPaths
    path: Path
    since: float  # when it began to wait, then when it was granted; not by the quick lane
    arrived: float  # set if it had to wait
    timeout: float | None  # the longest wait
    label: str  # what the slots are for; not set without one
    task: asyncio.Task[Any] | None  # to cancel when the ttl ends; perhaps not set
    waker: Waker  # set once it waits
    failure: Exception | None  # why the wait ended without a grant
    key_weight: float  # of its key; set where keys take turns

    @property
    def weight(self) -> float:
        return getattr(self, "key_weight", 1.0)

    @property
    def head_start(self) -> int:  # type: ignore[override] # there it can be set
        return head_start_of(self.needs)

    def settle(self, **costs: int) -> Awaitable[None]:
        self.paths.check_costs(costs)
        if self.key is None:
            raise messages.context_not_yet_entered(self._title)
        self.paths.charge(self.key, costs)
        return DONE

    def _keys(self) -> dict[str, str]:
        return keys_by_name(self.paths._tracker.specs, self.path)

    @property
    def _title(self) -> str:
        return self.paths._title

    def _pauses(self) -> Sequence[Pause]:
        """Return what its service has asked to pause, for events."""
        return asked_pauses(self._outcomes, self.paths._specs, cast("Any", self.path))

    # --------------------------------------------------------------- its life

    def take(self) -> bool:
        lane = self.paths._lane
        if lane.woken or events.hooks:
            return False
        if lane.attention or self.needs is not None:
            return lane.is_rated and exclusive(lane.take_now, self)
        taken: list[Node] = []
        try:
            for nodes, key in zip(lane.tables, self.path):  # noqa: B905 - it costs, and was checked
                node = nodes[key]
                number = heappop(node.free)
                taken.append(node)
        except LookupError:
            if taken:
                lane.undo(taken, number)
            return False
        if lane.closed:
            # Closed meanwhile: it may have taken what was given back after the close.
            lane.undo(taken, number)
            return False
        self.nodes = taken
        self._slot_number = number
        lane.holders[self.key] = self
        return True

    def wait(self) -> Coroutine[Any, Any, None]:
        return self.paths._acquire(self)

    def give(self) -> bool:
        if not self.end():
            return False
        if events.hooks:
            _log.ended(self, "released")
        tracker = self.paths._tracker
        if tracker.unreported:
            tracker.tell_changes(self.paths._tell_adapted)
        return True

    def end(self) -> bool:
        """Free what it holds, whoever asks for it; False if it has ended before."""
        tracker = self.paths._tracker
        # The pop decides between all who end the same acquisition: exactly one frees the slots.
        if tracker.holders.pop(self.key, None) is None:
            tracker.keep_task(self.key)
            return False
        if tracker.attention or self.ttl is not None or self.needs is not None:
            tracker.take_back(self)
            return True
        now = clock.now()
        number = self._slot_number
        for node in self.nodes:
            node.used = now
            heappush(node.free, number)
        if len(tracker.tables[0]) > tracker.roomy or tracker.attention:
            tracker.look_around(self.nodes)
        return True
