"""Seeing a request to its end: granted, in vain, or cancelled, and cleaned up after.

What is asked and what is answered is the acquisition's business. This is what
awaiting the answer is like, the same for semaphores and for paths.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from slotwise.errors import AcquireTimeout
from slotwise.redis import _log
from slotwise.redis._diagnosis import Unreachable
from slotwise.redis._reply_limits import LEAVE_QUEUE, TRY, no_reply

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition


class TimedOut(Exception):
    """Inside only: the wait is over, and why has yet to be found out."""


class NotReached(AcquireTimeout, Unreachable):
    """The time was up, and the server had not answered.

    Nobody knows then whether there was a slot, so it is caught as either.
    """


async def wait_for_grant(acquisition: RedisAcquisition, timeout: float | None) -> None:
    """Wait until a request is granted, or clean up after it.

    ``timeout`` 0 waits for nobody but the server, which has a second to answer.
    """
    future, timer = acquisition.future, None
    # By another thread, which may not have seen it among the waiters.
    if acquisition.semaphore._generation.closed and acquisition.close():
        acquisition.send_release(acquisition.client).add_done_callback(acquisition._withdrawn)
    if timeout is not None:
        timer = acquisition.client.loop.call_later(timeout or TRY, acquisition.time_out)
    try:
        await future
    except TimedOut:
        await _time_out(acquisition, timeout or TRY, LEAVE_QUEUE if timeout else 0.0)
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            future.exception()  # it was looked at, and came too late
        try:
            await acquisition.withdraw(acquisition.semaphore._config.cleanup_timeout)
        except Exception:  # noqa: S110 - the heartbeat's silence frees what this could not
            pass
        raise
    except GeneratorExit:  # collected together with its event loop
        acquisition.shared.forget_closed_loops()
        raise
    else:
        _log.acquired(acquisition)
    finally:
        if timer is not None:
            timer.cancel()


async def _time_out(acquisition: RedisAcquisition, waited: float, patience: float) -> None:
    """Say why a wait was in vain: full, or out of reach."""
    trouble = acquisition.client.trouble(acquisition.record.keys.slot)
    queued = acquisition.queued
    reply = await acquisition.withdraw(patience)
    if trouble is not None and not queued:
        raise trouble
    in_vain = f"no slot of {acquisition.title} in {waited:g} s"
    granted = reply is not None and acquisition.was_granted(reply)
    if reply is None or (granted and not queued):
        silence = patience if queued else waited  # perhaps an outage
        no_reply(silence, acquisition.client, acquisition.record.keys.slot)
        raise NotReached(f"{in_vain}: {acquisition.shared.config.endpoint} did not answer")
    if granted:
        raise AcquireTimeout(f"{in_vain}: it came just too late")
    raise acquisition.timeout_error(waited, reply)
