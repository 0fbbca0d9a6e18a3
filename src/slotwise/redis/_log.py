"""Log the acquisitions of the Redis driver, on the logger ``slotwise.redis``.

The wording and the fields are those of every driver: see `slotwise._core.log`.
"""

from __future__ import annotations

import time
from logging import DEBUG
from typing import TYPE_CHECKING

from slotwise._core import events, log
from slotwise.errors import BackendError
from slotwise.redis._diagnosis import Unreachable, logger

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._shared_client import NameRecord


_perhaps_wanted = log.cached_levels(logger)


def acquired(holder: RedisAcquisition) -> None:
    if events.hooks:
        events.acquired(holder.acquisition_id, holder.since, holder.fencing_token)
    if _perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        limit, acquire_time = holder.limit, holder.since - holder.requested_at
        log.acquired(logger, holder, limit.name, limit.value, acquire_time)


def refused(waiter: RedisAcquisition, error: BaseException, *, waits: bool) -> None:
    if events.hooks:
        events.refused(waiter.acquisition_id, time.monotonic(), error, waits=waits)


def ended(holder: RedisAcquisition, kind: events.Kind) -> None:
    if events.hooks:
        events.ended(holder.acquisition_id, kind, time.monotonic(), holder.pauses)


def released(holder: RedisAcquisition) -> None:
    if _perhaps_wanted(DEBUG, True) and logger.isEnabledFor(DEBUG):
        held_time = time.monotonic() - holder.since
        log.released(logger, holder, holder.limit.name, holder.limit.value, held_time)


def lost(holder: RedisAcquisition, kind: events.Kind, reason: str) -> None:
    ended(holder, kind)
    held_time = time.monotonic() - holder.since
    log.lost(logger, holder, holder.limit.name, holder.limit.value, held_time, reason)


def reset(record: NameRecord, why: bytes) -> None:
    logger.warning(
        "the keys of %r were lost or changed by somebody else, and it begins anew: its holders lose"
        " what they hold, and its waiters queue again (%s)",
        *(record.name, why.decode(errors="replace")),
    )


def unconfirmed(record: NameRecord, interval: float, error: BackendError) -> None:
    """Log why a block that is left doesn't know whether its slot was released."""
    if isinstance(error, Unreachable):
        # The outage was logged when it began; a thousand blocks would say no more.
        logger.debug("the release of a slot of %r continues in the background", record.name)
    else:
        logger.warning(
            "a slot of %r could not be released, and is free after %g s of silence: %s",
            *(record.name, interval, error),
        )
