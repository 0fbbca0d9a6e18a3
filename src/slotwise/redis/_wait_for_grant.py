"""Wait until a request is granted, times out or is cancelled.

It is the same for every kind of limit. The acquisition and its dialect know what is requested and
what replies mean.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from slotwise._core.limit import TIMEOUT_LIMIT
from slotwise._core.messages import no_slot, wait_failed
from slotwise.errors import AcquireTimeout, BackendError
from slotwise.redis import _log
from slotwise.redis._away import ServerAway
from slotwise.redis._diagnosis import Unreachable, may_pass
from slotwise.redis._net.call import Call
from slotwise.redis._reply_limits import no_reply

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition


# A wait that is about to time out asks, this many seconds before its end, whether the server still
# answers: what is left after the end is too short to tell a distant server from a silent one.
_ASK_BEFORE = 0.5


class TimedOut(Exception):
    """Internal: the wait timed out; the reason is found out afterwards."""


class NotReached(AcquireTimeout, Unreachable):
    """The time was up, and the server had not answered.

    It is not known whether there was a slot, so it can be caught as either.
    """


class _Deadline:
    """The end of a wait, and whether the server was silent before it."""

    __slots__ = ("_acquisition", "_asked_at", "_lead", "_timer")

    def __init__(self, acquisition: RedisAcquisition, seconds: float) -> None:
        self._acquisition = acquisition
        self._asked_at: float | None = None  # without an answer so far
        self._lead = min(_ASK_BEFORE, seconds / 2)
        self._timer = acquisition.client.loop.call_later(seconds - self._lead, self._ask_server)

    def _ask_server(self) -> None:
        acquisition = self._acquisition
        client = acquisition.client
        self._timer = client.loop.call_later(self._lead, acquisition.time_out)
        if acquisition.queued:
            self._asked_at = time.monotonic()
            slot = acquisition.record.keys.slot
            limits = acquisition.limit._limits
            client.submit(Call(None, (), ["TIME"], self._answered, slot, limits))

    def _answered(self, _: Call, reply: Any) -> None:
        if not isinstance(reply, Unreachable):
            self._asked_at = None

    def silence(self) -> float:
        """Return for how long the server has been silent, if that is longer than usual."""
        if self._asked_at is None:
            return 0.0
        silence = time.monotonic() - self._asked_at
        return silence if silence >= 2 * self._acquisition.round_trip else 0.0

    def cancel(self) -> None:
        self._timer.cancel()


async def wait_for_grant(
    acquisition: RedisAcquisition, timeout: float | None, *, at_once: float | None = None
) -> RedisAcquisition:
    """Wait until a request is granted, and return it, or clean up after it.

    ``timeout`` 0 waits only for the server's answer, which may take as long as it may after any
    other timeout, or ``at_once`` seconds.
    """
    answer_limit = TIMEOUT_LIMIT if at_once is None else at_once
    deadline = None if timeout is None else _Deadline(acquisition, timeout or answer_limit)
    # Closed by another thread, which may not have seen it among the waiters.
    if acquisition.limit._generation.closed and acquisition.close():
        acquisition.send_withdrawal()
    try:
        await acquisition.future
    except BaseException as error:
        try:
            await _clean_up(acquisition, error, timeout, at_once, deadline)
            raise
        except ServerAway:  # the limit's policy continues, with another acquisition
            await acquisition.withdraw(0.0)  # it continues in the background
            _log.refused(acquisition, BackendError(), waits=timeout != 0)
            raise
        except BaseException as outcome:
            _log.refused(acquisition, outcome, waits=timeout != 0)
            raise
    finally:
        if deadline is not None:
            deadline.cancel()
    acquisition.seen = True
    _log.acquired(acquisition)
    return acquisition


async def _clean_up(
    acquisition: RedisAcquisition,
    error: BaseException,
    timeout: float | None,
    at_once: float | None,
    deadline: _Deadline | None,
) -> None:
    """Withdraw a request whose wait ended with ``error``; raise the reason of a timeout."""
    if isinstance(error, TimedOut):
        assert deadline is not None
        assert timeout is not None
        await _time_out(acquisition, deadline, at_once or timeout, TIMEOUT_LIMIT if timeout else 0)
    elif isinstance(error, BackendError):
        if may_pass(error) and acquisition.call is not None and acquisition.call.sent:
            # The server may still grant it, to nobody. A script that fails on a damaged key may
            # have queued it before.
            acquisition.send_withdrawal()
    elif isinstance(error, asyncio.CancelledError):
        future = acquisition.future
        if future.done() and not future.cancelled():
            future.exception()  # retrieved: it came too late
        try:
            await acquisition.withdraw(TIMEOUT_LIMIT)
        except Exception:  # noqa: S110 - silence frees what this could not
            pass
    elif isinstance(error, GeneratorExit):  # collected together with its event loop
        acquisition.shared.forget_closed_loops()


async def _time_out(
    acquisition: RedisAcquisition, deadline: _Deadline, waited: float, patience: float
) -> None:
    """Raise the reason of a timeout: full, or unreachable."""
    client, slot = acquisition.client, acquisition.record.keys.slot
    trouble = client.trouble(slot)
    queued = acquisition.queued
    released = await acquisition.withdraw(patience)
    waited = round(waited, 3) or waited  # what is left for one of several tiers has many digits
    title = acquisition.limit._title
    if trouble is not None and not queued:
        if isinstance(trouble, Unreachable):
            raise wait_failed(NotReached, title, waited, str(trouble)) from trouble
        raise trouble
    endpoint = acquisition.shared.endpoint
    if released is None and queued and trouble is None and not deadline.silence():
        # Only the answer to leaving the queue did not come in so short a time.
        share = acquisition.record.dialect.share_requested(acquisition)
        why = f"still queued{share} when {endpoint} last answered"
        raise no_slot(title, waited, why)
    if released is None or (released.held and not queued):
        silence = deadline.silence() if queued else waited  # perhaps an outage
        no_reply(silence, client, slot)
        raise wait_failed(NotReached, title, waited, f"{endpoint} did not answer")
    if released.held:
        raise no_slot(title, waited, "it came just too late")
    raise acquisition.record.dialect.timeout_error(acquisition, waited, released.counts)
