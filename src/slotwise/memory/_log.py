"""Log acquisitions in memory, on the logger ``slotwise.memory``, unless nobody listens.

The wording and the fields are those of every driver: see `slotwise._core.log`.
"""

from __future__ import annotations

import logging
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._core import log
from slotwise._core.messages import KICKED, display, ttl_ended
from slotwise._wait import clock

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition
    from slotwise.memory._tracker import Tracker

logger = logging.getLogger("slotwise.memory")

# For who can't wait for a call: `logged[DEBUG]`, and a KeyError if it isn't known.
logged = log.cached_answers(logger)
perhaps_wanted = log.cached_levels(logger)


def acquiring(lease: MemoryAcquisition, name: str | None) -> None:
    if logger.isEnabledFor(DEBUG):
        logger.debug(
            "acquiring %d of %s",
            lease.slots,
            display(name),
            extra={"semaphore_name": name, "acquisition_id": lease.acquisition_id},
        )


def acquired(lease: MemoryAcquisition, tracker: Tracker, started: float) -> None:
    """``started`` is when it began to ask."""
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        lease.since = clock.now()
        acquire_time = lease.since - started
        log.acquired(logger, lease, tracker.name, tracker.value, acquire_time)


def released(lease: MemoryAcquisition, tracker: Tracker) -> None:
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        log.released(logger, lease, tracker.name, tracker.value, _held_time(lease))


def expired(lease: MemoryAcquisition, tracker: Tracker, held_time: float) -> None:
    log.lost(logger, lease, tracker.name, tracker.value, held_time, ttl_ended(lease.ttl))


def kicked(lease: MemoryAcquisition, tracker: Tracker) -> None:
    log.lost(logger, lease, tracker.name, tracker.value, _held_time(lease), KICKED)


def unknown_id(acquisition_id: str, name: str | None) -> None:
    log.released_nothing(logger, acquisition_id, name, issued_here=False)


def _held_time(lease: MemoryAcquisition) -> float | None:
    """Return how long it was held; None if nothing was logged when it was acquired."""
    since: float | None = getattr(lease, "since", None)
    return None if since is None else clock.now() - since
