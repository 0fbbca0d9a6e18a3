"""MemoryRateAcquisition: a cost that was taken from a single rate without waiting.

It holds nothing. Waiters are claims of the ledger, as everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from slotwise._core import events
from slotwise._core.results import DONE, AcquisitionResult
from slotwise._wait import clock
from slotwise._wait.section import lock, postponed, run_postponed, section
from slotwise.memory._ids import id_of, next_key
from slotwise.memory._unfilled import unfilled

if TYPE_CHECKING:
    from slotwise.memory._paths import MemoryPaths


_PATH = (None,)

_observed = False  # whether somebody listens to events, which are made elsewhere


def _switch(listening: bool) -> None:
    global _observed
    _observed = listening


events.on_switch(_switch)


class MemoryRateAcquisition(AcquisitionResult):
    """A cost that was taken of a rate, and can be corrected."""

    __slots__ = ("key", "paths")

    _slot_number = 0

    __init__ = object.__init__  # `take_rate` sets its attributes

    key: int
    paths: MemoryPaths

    @property
    def acquisition_id(self) -> str:
        return id_of(self.key)

    def settle(self, **costs: int) -> Awaitable[None]:
        self.paths.check_costs(costs)
        self.paths.charge(self.key, costs)
        return DONE


def take_rate(paths: MemoryPaths, cost: int) -> MemoryRateAcquisition | None:
    """Take ``cost`` of a single rate without keys if nobody waits; None to ask the tracker.

    It does what `PathLedger.try_request` does, or nothing; a test compares them.
    """
    tracker = paths._tracker
    node = tracker.only_rate
    if node is None or _observed or tracker.woken:
        return None
    with lock:  # `exclusive`, inlined
        if section.busy or tracker.waiting or tracker.closed or tracker.paused:
            return None
        section.busy = True
        try:
            # `RateNode.has_room` and `RateNode.take`, inlined.
            now, rate, level = clock.now(), node.rate, node.level
            at = int(now * 1_000_000 + 0.5)
            elapsed = at - node.at
            node.at = at
            if elapsed > 0 and level < rate.full:
                level += elapsed * rate.gain
                if level > rate.full:
                    level = rate.full
            needed = cost * rate.unit
            if needed > level:
                node.level = level
                return None
            node.level = level - needed
            recent = tracker.recent
            if now >= recent.turn_at:
                recent.forget_old(now)
            key = next_key()
            # `EndedClaims.remember`, inlined.
            until = now + recent.remembered_for
            recent.young[key] = until if cost == 1 else (until, _PATH, (cost,))
            if tracker.name is not None:
                unfilled[tracker.name] = tracker
        finally:
            section.busy = False
    if postponed:
        run_postponed()
    acquired: MemoryRateAcquisition = MemoryRateAcquisition()
    acquired.key = key
    acquired.paths = paths
    return acquired
