"""Log acquisitions in memory, on the logger ``slotwise.memory``, unless nobody listens.

The wording and the fields are those of every driver: see `slotwise._core.log`.
"""

from __future__ import annotations

import logging
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._core import events, log
from slotwise._core.messages import KICKED, display, ttl_ended
from slotwise._wait import clock

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition
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


def acquiring(lease: MemoryAcquisition, semaphore: MemorySemaphore) -> None:
    if events.hooks:
        semaphore._tell_requested(lease.acquisition_id, lease.slots, clock.now())
    name = semaphore._name
    if logger.isEnabledFor(DEBUG):
        logger.debug(
            "acquiring %d of %s",
            lease.slots,
            display(name),
            extra={"semaphore_name": name, "acquisition_id": lease.acquisition_id},
        )


def acquired(lease: MemoryAcquisition, tracker: Tracker, started: float) -> None:
    """``started`` is when it began to ask."""
    if events.hooks:
        events.acquired(lease.acquisition_id, clock.now())
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        lease.since = clock.now()
        acquire_time = lease.since - started
        log.acquired(logger, lease, tracker.name, tracker.value, acquire_time)


def refused(lease: MemoryAcquisition | MemoryPathAcquisition, error: BaseException | None) -> None:
    if events.hooks:
        events.refused(lease.acquisition_id, clock.now(), error, waits=lease.timeout != 0)


def released(lease: MemoryAcquisition, tracker: Tracker) -> None:
    ended(lease, "released")
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        log.released(logger, lease, tracker.name, tracker.value, _held_time(lease))


def ended(lease: MemoryAcquisition | MemoryPathAcquisition, kind: events.Kind) -> None:
    if events.hooks:
        events.ended(lease.acquisition_id, kind, clock.now(), lease._pauses)


def expired(lease: MemoryAcquisition, tracker: Tracker, held_time: float) -> None:
    ended(lease, "expired")
    log.lost(logger, lease, tracker.name, tracker.value, held_time, ttl_ended(lease.ttl))


def kicked(lease: MemoryAcquisition, tracker: Tracker) -> None:
    ended(lease, "kicked")
    log.lost(logger, lease, tracker.name, tracker.value, _held_time(lease), KICKED)


def unknown_id(acquisition_id: str, name: str | None) -> None:
    log.released_nothing(logger, acquisition_id, name, issued_here=False)


def _held_time(lease: MemoryAcquisition) -> float | None:
    """Return how long it was held; None if nothing was logged when it was acquired."""
    since: float | None = getattr(lease, "since", None)
    return None if since is None else clock.now() - since
