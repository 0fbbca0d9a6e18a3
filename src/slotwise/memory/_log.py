"""What the memory driver tells the standard library's logging, and when it may skip it.

Fields go into ``extra``: ``semaphore_name``, ``acquisition_id``,
``acquire_time``, ``held_time``, ``slot_number``, ``max_slots``.
"""

from __future__ import annotations

import logging
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._core.log_levels import cached_levels
from slotwise._core.messages import display
from slotwise._wait import clock

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition
    from slotwise.memory._tracker import Tracker

logger = logging.getLogger("slotwise.memory")


perhaps_wanted = cached_levels(logger)


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
        logger.debug(
            "acquired slot %d of %s after %.3f s",
            lease.slot_number,
            display(tracker.name),
            acquire_time,
            extra={
                "semaphore_name": tracker.name,
                "acquisition_id": lease.acquisition_id,
                "acquire_time": acquire_time,
                "slot_number": lease.slot_number,
                "max_slots": tracker.value,
            },
        )


def released(lease: MemoryAcquisition, tracker: Tracker) -> None:
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        # Not known if nobody listened when it was acquired.
        since: float | None = getattr(lease, "since", None)
        held_time = None if since is None else clock.now() - since
        logger.debug(
            "released slot %d of %s",
            lease.slot_number,
            display(tracker.name),
            extra=_ending(lease, tracker, held_time),
        )


def expired(lease: MemoryAcquisition, tracker: Tracker, held_time: float) -> None:
    logger.warning(
        "slot %d of %s expired: %s held it for %.3f s, its ttl is %g s",
        lease.slot_number,
        display(tracker.name),
        lease.acquisition_id,
        held_time,
        lease.ttl,
        extra=_ending(lease, tracker, held_time),
    )


def kicked(lease: MemoryAcquisition, tracker: Tracker) -> None:
    since: float | None = getattr(lease, "since", None)
    held_time = None if since is None else clock.now() - since
    logger.warning(
        "slot %d of %s lost by %s: it was kicked",
        lease.slot_number,
        display(tracker.name),
        lease.acquisition_id,
        extra=_ending(lease, tracker, held_time),
    )


def unknown_id(acquisition_id: str, name: str | None) -> None:
    logger.warning(
        "release of %r from %s ignored: this process never issued that id",
        acquisition_id,
        display(name),
        extra={"semaphore_name": name, "acquisition_id": acquisition_id},
    )


def _ending(
    lease: MemoryAcquisition, tracker: Tracker, held_time: float | None
) -> dict[str, object]:
    return {
        "semaphore_name": tracker.name,
        "acquisition_id": lease.acquisition_id,
        "held_time": held_time,
        "slot_number": lease.slot_number,
        "max_slots": tracker.value,
    }
