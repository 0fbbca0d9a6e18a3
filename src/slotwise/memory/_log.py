"""Log acquisitions in memory, on the logger ``slotwise.memory``, unless nobody listens.

The wording and the fields are those of every driver: see `slotwise._core.log`.
"""

from __future__ import annotations

import logging
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._core import events, log
from slotwise._core.messages import KICKED, display, ttl_ended
from slotwise._core.paths import slots_needed
from slotwise._wait import clock

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition
    from slotwise.memory._backend import MemoryBackend
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


def acquiring(acquisition: MemoryAcquisition, backend: MemoryBackend) -> None:
    acquisition_id, needs, path = acquisition.acquisition_id, acquisition.needs, acquisition.path
    if events.hooks:
        backend._tell_requested(acquisition_id, needs, clock.now(), path)
    if logger.isEnabledFor(DEBUG):
        name = backend.tracker.name
        logger.debug(
            "acquiring %d of %s",
            slots_needed(backend._specs, needs),
            display(name),
            extra={"semaphore_name": name, "acquisition_id": acquisition_id},
        )


def acquired(acquisition: MemoryAcquisition, tracker: Tracker, started: float) -> None:
    """``started`` is when it began to ask."""
    if not acquisition.named:
        return
    if events.hooks:
        events.acquired(acquisition.acquisition_id, clock.now())
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        acquisition.since = clock.now()
        acquire_time = acquisition.since - started
        log.acquired(logger, acquisition, tracker.name, tracker.ledger.max_slots, acquire_time)


def refused(acquisition: MemoryAcquisition, error: BaseException | None) -> None:
    if events.hooks:
        events.refused(
            acquisition.acquisition_id, clock.now(), error, waits=acquisition.timeout != 0
        )


def released(acquisition: MemoryAcquisition, tracker: Tracker) -> None:
    ended(acquisition, "released")
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        held_time = _held_time(acquisition)
        log.released(logger, acquisition, tracker.name, tracker.ledger.max_slots, held_time)


def ended(acquisition: MemoryAcquisition, kind: events.Kind) -> None:
    if events.hooks:
        events.ended(acquisition.acquisition_id, kind, clock.now(), acquisition._pauses)


def expired(acquisition: MemoryAcquisition, tracker: Tracker, held_time: float) -> None:
    ended(acquisition, "expired")
    _lost(acquisition, tracker, held_time, ttl_ended(acquisition.ttl))


def kicked(acquisition: MemoryAcquisition, tracker: Tracker) -> None:
    ended(acquisition, "kicked")
    _lost(acquisition, tracker, _held_time(acquisition), KICKED)


def _lost(
    acquisition: MemoryAcquisition, tracker: Tracker, held_time: float | None, reason: str
) -> None:
    most = tracker.ledger.max_slots
    log.lost(logger, acquisition, tracker.name, most, held_time, reason)


def unknown_id(acquisition_id: str, name: str | None) -> None:
    log.released_nothing(logger, acquisition_id, name, issued_here=False)


def _held_time(acquisition: object) -> float | None:
    """Return how long it was held; None if it isn't known when it was granted."""
    since: float | None = getattr(acquisition, "since", None)
    return None if since is None else clock.now() - since
