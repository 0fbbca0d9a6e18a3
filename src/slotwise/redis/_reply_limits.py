"""How long a caller waits for the server's reply, and what follows when it doesn't come.

A caller that stops waiting doesn't stop its call. A release is also handed to the heartbeat
thread, which keeps trying after the caller's event loop is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.limit import EXIT_LIMIT
from slotwise.errors import BackendError
from slotwise.redis import _outages
from slotwise.redis._diagnosis import Unreachable, logger

if TYPE_CHECKING:
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord

T = TypeVar("T")

# In seconds. What is promised to callers is a little longer, so that it holds on a
# busy machine.
INSPECT = 1.9  # statistics, holders, waiters, resize, kick: within 2 s

# The shortest silence that counts as an outage: a caller with a short timeout proves nothing.
_OUTAGE = EXIT_LIMIT

# The least time that a reply has once the event loop runs again: the loop may have been blocked
# before the call was sent, or with the reply waiting in the socket. So a timer fires this long
# before the deadline, or after half of the time if that is shorter, to see that the loop runs.
_GRACE = 0.25


def look_limit(at_most: float | None) -> float:
    """Return how long to wait for a look-up, for a caller who has ``at_most`` seconds."""
    return INSPECT if at_most is None else min(at_most, INSPECT)


class _NoReply(Exception):
    """Internal: the caller's time is up."""


async def reply_within(
    seconds: float, reply: asyncio.Future[T], client: LoopClient, slot: int | None
) -> T:
    """Wait for a reply, for at most ``seconds``.

    Raises:
        Unreachable: it did not come in time. The call may still be carried out.
        BackendError: the server can't be used.
    """
    grace = min(_GRACE, seconds / 2)
    timer: asyncio.TimerHandle

    def look_again() -> None:
        nonlocal timer
        timer = client.loop.call_later(grace, _stop_waiting, reply)

    timer = client.loop.call_later(seconds - grace, look_again)
    client.awaited += 1
    try:
        return await reply
    except _NoReply:
        raise no_reply(seconds, client, slot) from None
    finally:
        client.awaited -= 1
        timer.cancel()


def _stop_waiting(reply: asyncio.Future[T]) -> None:
    if not reply.done():
        reply.set_exception(_NoReply())


def no_reply(seconds: float, client: LoopClient, slot: int | None) -> BackendError:
    """Return the error of a caller that got no reply for that long.

    It is noted as an outage if it was long enough and others got no reply either: a call behind
    10,000 others on a busy server waits long, too.
    """
    error = client.trouble(slot) or Unreachable(
        f"{client.endpoint} did not answer in {seconds:g} s; is it overloaded or stopped?"
    )
    if seconds >= _OUTAGE and isinstance(error, Unreachable) and not client.is_answering(slot):
        _outages.begin(client.server(slot), error, broken=False, ago=seconds)
    return error


# ----------------------------------------------------------------------- releases

# Sends a release through a loop client; returns a future of its result.
Send = Callable[["LoopClient"], "asyncio.Future[Any]"]


def release_unconfirmed(record: NameRecord, interval: float, error: BackendError) -> None:
    """Log why a block that is left doesn't know whether its slot was released."""
    if isinstance(error, Unreachable):
        # The outage was logged when it began; a thousand blocks would say no more.
        logger.debug("the release of a slot of %r continues in the background", record.name)
    else:
        logger.warning(
            "a slot of %r could not be released, and is free after %g s of silence: %s",
            *(record.name, interval, error),
        )
