"""Log the acquisitions of this driver, on the logger ``slotwise.processes``.

The wording and the fields are those of every driver: see `slotwise._core.log`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from slotwise._core import events, log
from slotwise._wait import clock

if TYPE_CHECKING:
    from slotwise.processes._acquisition import ProcessAcquisition
    from slotwise.processes._limit import SharedLimit

logger = logging.getLogger("slotwise.processes")

_perhaps_wanted = log.cached_levels(logger)


def acquired(holder: ProcessAcquisition) -> None:
    if events.hooks:
        events.acquired(holder.acquisition_id, holder.granted_at, holder.fencing_token)
    if _perhaps_wanted(logging.DEBUG, True) and logger.isEnabledFor(logging.DEBUG):
        acquire_time = holder.granted_at - holder.requested_at
        log.acquired(logger, holder, *_sizes(holder)[:2], acquire_time)


def refused(waiter: ProcessAcquisition, error: BaseException | None, *, waits: bool) -> None:
    if events.hooks:
        events.refused(waiter.acquisition_id, clock.now(), error, waits=waits)


def released(holder: ProcessAcquisition) -> None:
    if events.hooks:
        events.ended(holder.acquisition_id, "released", clock.now(), holder.pauses)
    if _perhaps_wanted(logging.DEBUG, True) and logger.isEnabledFor(logging.DEBUG):
        log.released(logger, holder, *_sizes(holder))


def released_nothing(limit: SharedLimit, acquisition_id: str) -> None:
    issued_here = acquisition_id.startswith(f"{limit.journal.owner}-")
    log.released_nothing(logger, acquisition_id, limit.public_name, issued_here=issued_here)


def lost(holder: ProcessAcquisition, event: str, reason: str) -> None:
    if events.hooks:
        kind: events.Kind = "lost"
        if event in ("expired", "kicked"):
            kind = cast("events.Kind", event)
        events.ended(holder.acquisition_id, kind, clock.now())
    log.lost(logger, holder, *_sizes(holder), reason)


def unreadable(name: str, error: Exception) -> None:
    logger.warning("%r can't be read: %s", name, error, extra={"semaphore_name": name})


def _sizes(holder: ProcessAcquisition) -> tuple[str | None, int | None, float]:
    """The name of its limit, how many slots that has, and for how long this was held."""
    limit = holder.limit
    value = None if limit.state is None else limit.state.max_slots
    return limit.public_name, value, clock.now() - holder.granted_at
