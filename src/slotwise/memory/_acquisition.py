"""MemoryAcquisition: one acquisition in this process, which is its own context manager.

One object is the ``cm()``, the ledger's claim and the caller's result, because making two would
cost more than the acquisition itself. It takes slots by the quick lane where it can; everything
that has to wait goes to the backend.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Awaitable, Coroutine, Sequence
from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING, Any, Self

from slotwise._core.adaptive import Outcome
from slotwise._core.at_once import DONE
from slotwise._core.limit import AcquisitionContext
from slotwise._core.messages import context_not_entered, context_not_yet_entered, context_reused
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.paths import SEMAPHORE_PATH, Needs, Path, keys_by_name
from slotwise._core.results import AcquisitionResult
from slotwise._core.twins import refuse_to_block_a_loop, run_here
from slotwise._ledger.path_nodes import BasePathClaim
from slotwise._ledger.times import microseconds
from slotwise._wait.wakers import Waker
from slotwise.memory import _quick_lane
from slotwise.memory._ids import id_of, next_key
from slotwise.memory._log import logged

if TYPE_CHECKING:
    from slotwise._core.events import Pause
    from slotwise.memory._backend import MemoryBackend


class MemoryAcquisition(BasePathClaim, AcquisitionResult, AcquisitionContext):
    """One slot of a semaphore, from ``cm()`` to its end.

    Only backends make it, and set its attributes themselves: a call of ``__init__`` would cost a
    tenth of an uncontended acquisition.
    """

    __slots__ = (
        *("arrived", "backend", "failure", "group", "key", "rank", "since", "ticket", "timeout"),
        "waker",
    )

    __init__ = object.__init__

    # What only a `GeneralAcquisition` may have otherwise.
    label: str | None = None
    needs: Needs | None = None
    path: Path = SEMAPHORE_PATH
    replaced: Sequence[MemoryAcquisition] = ()
    task: asyncio.Task[Any] | None = None
    ttl: float | None = None
    weight: float = 1.0

    backend: MemoryBackend
    key: int | None  # None until it is entered
    # When it began to wait, then when it was granted; not set if it was granted by the
    # quick lane, which doesn't look at the clock.
    since: float
    arrived: float  # set if it had to wait
    timeout: float | None  # the longest wait
    waker: Waker  # set once it waits
    failure: Exception | None  # why the wait ended without a grant

    @property
    def nodes(self) -> Sequence[Any]:
        """The only node: it isn't stored, since the inlined copies of the quick lane don't."""
        return self.backend.nodes

    @nodes.setter
    def nodes(self, nodes: Sequence[Any]) -> None: ...

    @property
    def acquisition_id(self) -> str:
        if self.key is None:
            raise context_not_yet_entered(self._title)
        return id_of(self.key)

    @property
    def slot_number(self) -> int:
        if self.key is None:
            raise context_not_yet_entered(self._title)
        return self._slot_number

    @property
    def waited(self) -> float:
        # Computed when somebody asks: the quick lane doesn't read the clock.
        began: float | None = getattr(self, "arrived", None)
        return 0.0 if began is None else max(self.since - began, 0.0)

    def ending(self, now: float) -> tuple[int, Outcome, int]:
        outcomes = self._outcomes
        if outcomes is None:
            return 0, "ignored", 0
        has_expired = self.ttl is not None and now >= self.since + self.ttl
        held_us = max(microseconds(now) - microseconds(self.since), 0)
        outcome: Outcome = "dropped" if has_expired else outcomes.outcome
        return held_us, outcome, microseconds(outcomes.retry_after)

    def settle(self, **costs: int) -> Awaitable[None]:
        self.backend.check_costs(costs)
        if self.key is None:
            raise context_not_yet_entered(self._title)
        self.backend.charge(self.key, costs)
        return DONE

    def _keys(self) -> dict[str, str]:
        return keys_by_name(self.backend.tracker.specs, self.path)

    def _pauses(self) -> Sequence[Pause]:
        """Return what its service has asked to pause, for events."""
        return asked_pauses(self._outcomes, self.backend._specs, self.path)

    @property
    def _title(self) -> str:
        return self.backend._title

    def __eq__(self, other: object) -> bool:
        return self is other or (self.key is not None and super().__eq__(other))

    def __hash__(self) -> int:
        return object.__hash__(self) if self.key is None else super().__hash__()

    def __repr__(self) -> str:
        if self.key is None:
            return f"<cm() of {self._title}, not entered yet>"
        return super().__repr__()

    # --------------------------------------------------- the context manager

    async def __aenter__(self) -> Self:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise context_reused(self._title)
        self.key = key
        backend = self.backend
        ledger = backend.lane
        try:  # `_quick_lane.take_one`, inlined
            if not (ledger.attention or ledger.line or backend.tracker.woken or logged[DEBUG]):
                number = heappop(backend.free)
                if not ledger.attention:
                    self._slot_number = number
                    ledger.holders[key] = self
                    return self
                backend.tracker.undo(backend.nodes, number)
        except LookupError:
            pass
        await backend.get(self)
        return self

    def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> Coroutine[Any, Any, None]:
        backend = self.backend
        ledger = backend.lane
        try:
            if not logged[DEBUG]:
                del ledger.holders[self.key]
                if ledger.line or ledger.attention:  # `_quick_lane.give_one`, inlined
                    backend.tracker.hand_over(self._slot_number)
                else:
                    heappush(backend.free, self._slot_number)
                    if ledger.line or ledger.attention:
                        backend.tracker.look_around(backend.nodes)
                return DONE
        except KeyError:  # it has ended before, was never entered, or is perhaps logged
            pass
        self.__exit__(exc_type, exc, traceback)
        return DONE

    def __enter__(self) -> Self:
        if _get_running_loop() is not None:
            refuse_to_block_a_loop("'with'")
        self._enter()
        if not _quick_lane.take(self):
            run_here(self._get)
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if self.key is None:
            raise context_not_entered(self._title)
        self._leave_with(exc_type)
        self.backend.give(self)

    def _enter(self) -> None:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise context_reused(self._title)
        self.key = key

    def _get(self) -> Coroutine[Any, Any, object]:
        return self.backend.get(self)


class GeneralAcquisition(MemoryAcquisition):
    """Anything of a semaphore or of tiers: several slots, with a ttl, a label, costs, an outcome.

    The quick lane isn't inlined here.
    """

    # Its `__dict__` has what most don't have: a label, several slots, a head start and so on.
    __slots__ = ("__dict__", "nodes", "path", "ttl")

    _outcomes: Outcomes | None
    head_start: int
    label: str | None  # what the slots are for
    needs: Needs | None
    nodes: Sequence[Any]
    path: Path
    ranges: Sequence[range]
    replaced: Sequence[MemoryAcquisition]  # the holders that it has replaced
    replaces: bool
    task: asyncio.Task[Any] | None  # to cancel when the ttl ends
    ttl: float | None
    weight: float  # of its key, where keys take turns

    async def __aenter__(self) -> Self:
        key = next_key()
        if self.key is not None:  # as in `_enter`
            raise context_reused(self._title)
        self.key = key
        if not _quick_lane.take(self):
            await self.backend.get(self)
        return self

    def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> Coroutine[Any, Any, None]:
        if self._outcomes is not None or self.key is None:
            self.__exit__(exc_type, exc, traceback)
        else:
            self.backend.give(self)
        return DONE


class BlockWait(MemoryAcquisition):
    """The wait of a block, which holds its slot without a claim, outside the line."""

    __slots__ = ()

    named = False

    def __init__(self, backend: MemoryBackend, timeout: float | None) -> None:
        self.key = next_key()
        self.backend = backend
        self.timeout = timeout
        self._slot_number = 0  # until it is granted
