"""What this driver logs about single acquisitions, on the logger ``slotwise.processes``.

Fields go into ``extra``, as those of the other drivers do: ``semaphore_name``,
``acquisition_id``, ``acquire_time``, ``held_time``, ``slot_number``, ``max_slots``.
"""

from __future__ import annotations

import logging
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._core.log_levels import cached_levels
from slotwise._wait import clock

if TYPE_CHECKING:
    from slotwise.processes._acquisition import ProcessAcquisition

logger = logging.getLogger("slotwise.processes")


perhaps_wanted = cached_levels(logger)


def acquired(holder: ProcessAcquisition) -> None:
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        acquire_time = holder.granted_at - holder.requested_at
        logger.debug(
            "acquired slot %d of %r after %.3f s",
            holder.slot_number,
            holder.file.name,
            acquire_time,
            extra={
                "semaphore_name": holder.file.name,
                "acquisition_id": holder.acquisition_id,
                "acquire_time": acquire_time,
                "slot_number": holder.slot_number,
                "max_slots": _value(holder),
            },
        )


def released(holder: ProcessAcquisition) -> None:
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        logger.debug(
            "released slot %d of %r", holder.slot_number, holder.file.name, extra=_ending(holder)
        )


def lost(holder: ProcessAcquisition, reason: str) -> None:
    logger.warning(
        "slot %d of %r lost by %s: %s",
        holder.slot_number,
        holder.file.name,
        holder.acquisition_id,
        reason,
        extra=_ending(holder),
    )


def unreadable(name: str, error: Exception) -> None:
    logger.warning("%r can't be read: %s", name, error, extra={"semaphore_name": name})


def _ending(holder: ProcessAcquisition) -> dict[str, object]:
    return {
        "semaphore_name": holder.file.name,
        "acquisition_id": holder.acquisition_id,
        "held_time": clock.now() - holder.granted_at,
        "slot_number": holder.slot_number,
        "max_slots": _value(holder),
    }


def _value(holder: ProcessAcquisition) -> int | None:
    state = holder.file.state
    return None if state is None else state.value
