"""Seeing a request to its end: granted, in vain, or cancelled, and cleaned up after.

What is asked and what is answered is the acquisition's business. This is what
awaiting the answer is like, the same for semaphores and for paths.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from slotwise.errors import AcquireTimeout
from slotwise.redis import log
from slotwise.redis.weather import Unreachable

if TYPE_CHECKING:
    from slotwise.redis.acquisition import Acquisition


class TimedOut(Exception):
    """Inside only: the wait is over, and why has yet to be found out."""


class NotReached(AcquireTimeout, Unreachable):
    """The time was up before there was a connection, and no attempt had failed yet.

    Nobody knows then whether the server can be reached, so it is caught as either.
    """


async def outcome(
    acquisition: Acquisition, timeout: float | None, timer: asyncio.TimerHandle | None
) -> None:
    """Wait until a request is granted, or clean up after it."""
    future = acquisition.future
    try:
        await future
    except TimedOut:
        await _give_up(acquisition, timeout or 0.0)
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            future.exception()  # it was looked at, and came too late
        try:
            await acquisition.withdraw()
        except Exception:  # noqa: S110 - the heartbeat's silence frees what this could not
            pass
        raise
    except GeneratorExit:  # collected together with its event loop
        acquisition.process.leave_closed_loops()
        raise
    else:
        log.acquired(acquisition)
    finally:
        if timer is not None:
            timer.cancel()


async def _give_up(acquisition: Acquisition, waited: float) -> None:
    """Say why a wait was in vain: full, or out of reach."""
    trouble = acquisition.seat.trouble(acquisition.room.keys.slot)
    queued = acquisition.queued
    reply = await acquisition.withdraw()
    if reply is None or (trouble is not None and not queued):
        raise trouble or NotReached(
            f"{acquisition.process.config.endpoint} could not be reached in {waited:g} s"
        )
    raise acquisition.vain_error(waited, reply)
