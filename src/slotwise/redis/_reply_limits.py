"""How long a caller waits for the server's reply, and what follows when it doesn't come.

A caller that stops waiting doesn't stop its call. A release is also handed to the heartbeat
thread, which keeps trying after the caller's event loop is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.limit import EXIT_LIMIT
from slotwise.errors import BackendError
from slotwise.redis import _outages
from slotwise.redis._diagnosis import Unreachable, logger

if TYPE_CHECKING:
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord, SharedClient

T = TypeVar("T")

# In seconds. What is promised to callers is a little longer, so that it holds on a
# busy machine.
TRY = 0.9  # try_acquire: within a second
INSPECT = 1.9  # statistics, holders, waiters, resize, kick: within 2 s
LEAVE_QUEUE = 0.15  # after a timeout, which is kept to within 0.2 s

# The shortest silence that is called an outage: a caller with a short timeout proves nothing.
_OUTAGE = EXIT_LIMIT

# The event loop may have been blocked, with the reply waiting in the socket.
_GRACE = 0.02


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
    # Not asyncio.wait_for or asyncio.timeout: this is on the path of every release.
    timer = client.loop.call_later(max(seconds - _GRACE, 0.0), _inspect, reply, client.loop)
    client.awaited += 1
    try:
        return await reply
    except _NoReply:
        raise no_reply(seconds, client, slot) from None
    finally:
        client.awaited -= 1
        timer.cancel()


def _inspect(reply: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> None:
    if not reply.done():
        loop.call_later(_GRACE, _stop_waiting, reply)


def _stop_waiting(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(_NoReply())


def no_reply(seconds: float, client: LoopClient, slot: int | None) -> BackendError:
    """Why there was no reply for so long; noted as an outage if it was long enough."""
    error = client.trouble(slot) or Unreachable(
        f"{client.config.endpoint} did not answer in {seconds:g} s; is it overloaded or stopped?"
    )
    if seconds >= _OUTAGE and isinstance(error, Unreachable):
        _outages.begin(client.server(slot), error, broken=False, ago=seconds)
    return error


# ----------------------------------------------------------------------- releases

# Sends a release through a loop client; the future has what became of it.
Send = Callable[["LoopClient"], "asyncio.Future[Any]"]

# How a release is awaited: one of the next two.
Release = Callable[[float, "SharedClient", "NameRecord", float, Send], Awaitable[Any]]


async def release_within(
    seconds: float, shared: SharedClient, record: NameRecord, interval: float, send: Send
) -> Any:
    """The reply to a release. One that does not come in time is awaited in the background.

    Raises:
        BackendError: nobody knows yet whether the server has it.
    """
    client = shared.client()
    try:
        return await reply_within(seconds, send(client), client, record.keys.slot)
    except Unreachable:
        shared.heartbeat_thread.finish_release(send, interval)
        raise


async def release_on_exit(
    seconds: float, shared: SharedClient, record: NameRecord, interval: float, send: Send
) -> Any:
    """`release_within` for a block that is left: the work is done, so nothing is raised.

    Returns None if the server has not confirmed it.
    """
    try:
        return await release_within(seconds, shared, record, interval, send)
    except Unreachable:
        # The outage was logged when it began; a thousand blocks would say no more.
        logger.debug("the release of a slot of %r continues in the background", record.name)
        return None
    except BackendError as error:
        logger.warning(
            "a slot of %r could not be released, and is free after %g s of silence: %s",
            *(record.name, interval, error),
        )
        return None
