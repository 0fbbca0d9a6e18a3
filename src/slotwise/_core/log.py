"""Log acquisitions, with the same wording and fields on every driver.

Fields go into ``extra``: ``semaphore_name``, ``acquisition_id``, ``acquire_time`` or
``held_time``, ``slot_number``, ``max_slots``, and of tiers ``keys``. Each driver decides what to
log when, and has a logger of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from slotwise._core.messages import display
from slotwise._core.results import AcquisitionResult


def cached_answers(logger: logging.Logger) -> dict[int, bool]:
    """Return the cache of a logger: whether each level is enabled, as far as that is cached.

    A Logger caches what ``isEnabledFor`` returned in a dict, which it clears when
    levels change. Reading that dict costs a fraction of the call.
    """
    answers: dict[int, bool] = getattr(logger, "_cache", {})
    logger.isEnabledFor(logging.DEBUG)  # fills the cache
    return answers


def cached_levels(logger: logging.Logger) -> Callable[[int, bool], bool]:
    """Return a function (level, True) that says whether that level is perhaps enabled.

    True means "yes, or not cached: call ``isEnabledFor``".
    """
    return cached_answers(logger).get


def acquired(
    logger: logging.Logger,
    holder: AcquisitionResult,
    name: str | None,
    max_slots: int | None,
    acquire_time: float,
) -> None:
    logger.debug(
        "acquired slot %d of %s after %.3f s",
        holder.slot_number,
        _subject(holder, name),
        acquire_time,
        extra={"acquire_time": acquire_time, **_fields(holder, name, max_slots)},
    )


def released(
    logger: logging.Logger,
    holder: AcquisitionResult,
    name: str | None,
    max_slots: int | None,
    held_time: float | None,
) -> None:
    """``held_time`` is None if it isn't known."""
    logger.debug(
        "released slot %d of %s",
        holder.slot_number,
        _subject(holder, name),
        extra={"held_time": held_time, **_fields(holder, name, max_slots)},
    )


def lost(
    logger: logging.Logger,
    holder: AcquisitionResult,
    name: str | None,
    max_slots: int | None,
    held_time: float | None,
    reason: str,
) -> None:
    logger.warning(
        "slot %d of %s lost by %s: %s",
        holder.slot_number,
        _subject(holder, name),
        holder.acquisition_id,
        reason,
        extra={"held_time": held_time, **_fields(holder, name, max_slots)},
    )


def released_nothing(
    logger: logging.Logger, acquisition_id: str, name: str | None, *, issued_here: bool
) -> None:
    """Warn of a release that found nothing, unless this process issued the id.

    An id that it issued has ended: releasing that again is routine.
    """
    if not issued_here:
        logger.warning(
            "release of %r from %s ignored: nobody holds it, and this process never issued that id",
            acquisition_id,
            display(name),
            extra={"semaphore_name": name, "acquisition_id": acquisition_id},
        )


def _subject(holder: AcquisitionResult, name: str | None) -> str:
    """``'api'``, or with the keys of a path ``'api' tenant='acme'``."""
    return display(name) + "".join(f" {tier}={key!r}" for tier, key in holder._keys().items())


def _fields(
    holder: AcquisitionResult, name: str | None, max_slots: int | None
) -> dict[str, object]:
    fields: dict[str, object] = {
        "semaphore_name": name,
        "acquisition_id": holder.acquisition_id,
        "slot_number": holder.slot_number,
        "max_slots": max_slots,
    }
    keys = holder._keys()
    return {**fields, "keys": {**keys}} if keys else fields
