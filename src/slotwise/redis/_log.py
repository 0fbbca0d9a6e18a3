"""What the Redis driver tells the standard library's logging of single acquisitions.

Fields go into ``extra``, as those of the memory driver do: ``semaphore_name``,
``acquisition_id``, ``acquire_time``, ``held_time``, ``slot_number``, ``max_slots``.
"""

from __future__ import annotations

import time
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._core.log import cached_levels
from slotwise._core.messages import display
from slotwise.redis._diagnosis import logger

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition


perhaps_wanted = cached_levels(logger)


def acquired(holder: RedisAcquisition) -> None:
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        acquire_time = holder.since - holder.requested_at
        logger.debug(
            "acquired slot %d of %s after %.3f s",
            holder.slot_number,
            display(holder.limit.name),
            acquire_time,
            extra={
                "semaphore_name": holder.limit.name,
                "acquisition_id": holder.acquisition_id,
                "acquire_time": acquire_time,
                "slot_number": holder.slot_number,
                "max_slots": holder.limit.value,
            },
        )


def released(holder: RedisAcquisition) -> None:
    if perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        logger.debug(
            "released slot %d of %s",
            holder.slot_number,
            display(holder.limit.name),
            extra=_ending(holder),
        )


def ended(holder: RedisAcquisition, reason: str) -> None:
    """Lost, or expired."""
    logger.warning("%s (%s)", reason, display(holder.limit.name), extra=_ending(holder))


def _ending(holder: RedisAcquisition) -> dict[str, object]:
    return {
        "semaphore_name": holder.limit.name,
        "acquisition_id": holder.acquisition_id,
        "held_time": time.monotonic() - holder.since,
        "slot_number": holder.slot_number,
        "max_slots": holder.limit.value,
    }
