"""Log acquisitions in memory, on the logger ``slotwise.memory``, unless nobody listens.

The wording and the fields are those of every driver: see `slotwise._core.log`.
"""

from __future__ import annotations

import logging
from logging import DEBUG
from typing import TYPE_CHECKING, Any

from slotwise._core import events, log
from slotwise._core.messages import KICKED, display, ttl_ended
from slotwise._wait import clock

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition
    from slotwise.memory._base_tracker import BaseTracker
    from slotwise.memory._path_acquisition import MemoryPathAcquisition
    from slotwise.memory._semaphore import MemorySemaphore
    from slotwise.memory._tracker import Tracker

logger = logging.getLogger("slotwise.memory")

# For code that can't afford a call: `logged[DEBUG]`, which is a KeyError if it isn't known. While
# somebody listens to events, it isn't the logger's cache and is True: that closes the quick lane.
logged = log.cached_answers(logger)
perhaps_wanted = logged.get


def _switch(listening: bool) -> None:
    logged.clear()
    if listening:
        logger._cache = {}  # type: ignore[attr-defined]
        logged[DEBUG] = True
    else:
        logger._cache = logged  # type: ignore[attr-defined]
        logger.isEnabledFor(DEBUG)  # fills it


events.on_switch(_switch)


def acquiring(acquisition: MemoryAcquisition, semaphore: MemorySemaphore) -> None:
    if events.hooks:
        semaphore._tell_requested(acquisition.acquisition_id, acquisition.slots, clock.now())
    name = semaphore._name
    if logger.isEnabledFor(DEBUG):
        logger.debug(
            "acquiring %d of %s",
            acquisition.slots,
            display(name),
            extra={"semaphore_name": name, "acquisition_id": acquisition.acquisition_id},
        )


def acquired(acquisition: MemoryAcquisition, tracker: Tracker, started: float) -> None:
    """``started`` is when it began to ask."""
    if events.hooks:
        events.acquired(acquisition.acquisition_id, clock.now())
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        acquisition.since = clock.now()
        acquire_time = acquisition.since - started
        log.acquired(logger, acquisition, tracker.name, tracker.value, acquire_time)


def refused(
    acquisition: MemoryAcquisition | MemoryPathAcquisition, error: BaseException | None
) -> None:
    if events.hooks:
        events.refused(
            acquisition.acquisition_id, clock.now(), error, waits=acquisition.timeout != 0
        )


def released(acquisition: MemoryAcquisition, tracker: Tracker) -> None:
    ended(acquisition, "released")
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        log.released(logger, acquisition, tracker.name, tracker.value, _held_time(acquisition))


def ended(acquisition: MemoryAcquisition | MemoryPathAcquisition, kind: events.Kind) -> None:
    if events.hooks:
        events.ended(acquisition.acquisition_id, kind, clock.now(), acquisition._pauses)


def expired(acquisition: Any, tracker: BaseTracker[Any], held_time: float) -> None:
    ended(acquisition, "expired")
    reason = ttl_ended(acquisition.ttl)
    log.lost(logger, acquisition, tracker.name, tracker.max_slots, held_time, reason)


def kicked(acquisition: Any, tracker: BaseTracker[Any]) -> None:
    ended(acquisition, "kicked")
    held_time = _held_time(acquisition)
    log.lost(logger, acquisition, tracker.name, tracker.max_slots, held_time, KICKED)


def unknown_id(acquisition_id: str, name: str | None) -> None:
    log.released_nothing(logger, acquisition_id, name, issued_here=False)


def _held_time(acquisition: object) -> float | None:
    """Return how long it was held; None if it isn't known when it was granted."""
    since: float | None = getattr(acquisition, "since", None)
    return None if since is None else clock.now() - since
