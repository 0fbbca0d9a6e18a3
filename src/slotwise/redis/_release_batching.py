"""Having acquisitions ended: one call for one release, one call for all releases of a tick.

Releases that tasks make in the same tick of a loop are sent as one script call,
which costs the server little more than a single one. Nothing here waits; the
futures have the replies of give.lua.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from slotwise.redis._net.connection import Call
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord, SharedClient

_RELEASE = load("give")
_RELEASE_MANY = load("give_many")
_KICK = load("kick")
_MOST_AT_ONCE = 200  # releases in one call

_Batch = list[tuple[str, "asyncio.Future[Any]"]]


def send_release(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    acquisition_id: str,
    interval: float,
    *,
    count: bool = False,
) -> asyncio.Future[Any]:
    """Have an acquisition ended: {slots it held, whether it stood in line, counts if asked for}.

    What the reply tells others is passed on when it comes. Who stops waiting
    does not stop the call.
    """
    future: asyncio.Future[Any] = client.loop.create_future()
    connection = client.connection_for(record.keys.slot)
    if count or connection is None or "*" in acquisition_id or connection.is_last_in_tick():
        _send_one(shared, record, client, acquisition_id, interval, future, count=count)
        return future
    batch: _Batch | None = client.pending_releases.get((record, interval))
    if batch is None:
        client.pending_releases[record, interval] = batch = []
        connection.before_flush(lambda: _send_batch(shared, record, client, interval))
    batch.append((acquisition_id, future))
    return future


def _send_batch(
    shared: SharedClient, record: NameRecord, client: LoopClient, interval: float
) -> None:
    batch: _Batch = client.pending_releases.pop((record, interval))
    if len(batch) == 1:
        [(acquisition_id, future)] = batch
        _send_one(shared, record, client, acquisition_id, interval, future)
        return
    for at in range(0, len(batch), _MOST_AT_ONCE):
        _send_many(shared, record, client, interval, batch[at : at + _MOST_AT_ONCE])


def _send_one(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    acquisition_id: str,
    interval: float,
    future: asyncio.Future[Any],
    *,
    count: bool = False,
) -> None:
    def released(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            if not future.done():
                future.set_exception(reply)
            return
        if call.doubtful and reply[0] == 0:
            reply[0] = 1  # sent twice: the first may have been the one that freed it
        if len(reply) > 5:
            for message in reply[5:]:
                shared.dispatch(message)
            # Whoever was granted the slot goes first: its hold begins, and ours is over.
            client.loop.call_soon(_finish, future, reply)
        else:
            _finish(future, reply)

    messages = b"count" if count else b""
    args = [b"", acquisition_id, client.token, interval, record.keys.notification, messages]
    call = Call(_RELEASE, record.keys.all, args, released, record.keys.slot)
    call.alone = True
    call.eager = not client.queued_by_name
    if not count:
        first, last = record.release_template(_RELEASE.sha, client.token, interval)
        own = acquisition_id.encode()
        call.packed = b"%b$%d\r\n%b\r\n%b" % (first, len(own), own, last)
    client.submit(call)


def _send_many(
    shared: SharedClient, record: NameRecord, client: LoopClient, interval: float, batch: _Batch
) -> None:
    def released(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            for _, future in batch:
                if not future.done():
                    future.set_exception(reply)
            return
        for message in reply[1:]:
            shared.dispatch(message)
        client.loop.call_soon(_finish_all, batch, reply[0], call.doubtful)

    args = [b"", client.token, interval, record.keys.notification]
    args += [acquisition_id for acquisition_id, _ in batch]
    client.submit(Call(_RELEASE_MANY, record.keys.all, args, released, record.keys.slot))


def kick(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    acquisition_id: str,
    interval: float,
) -> asyncio.Future[bool]:
    """Have somebody's acquisition ended: whether it held anything."""
    future: asyncio.Future[bool] = client.loop.create_future()

    def kicked(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            if not future.done():
                future.set_exception(reply)
            return
        for message in reply[1:]:
            shared.dispatch(message)
        # Sent twice: the first may have been the one that ended it.
        _finish(future, bool(reply[0]) or call.doubtful)

    args = [b"", acquisition_id, client.token, interval, record.keys.notification]
    client.submit(Call(_KICK, record.keys.all, args, kicked, record.keys.slot))
    return future


def _finish_all(batch: _Batch, digits: bytes, repeated: bool) -> None:
    for (_, future), digit in zip(batch, digits, strict=True):
        _finish(future, [1 if repeated or digit == ord("1") else 0, 0, 0, 0, 0])


def _finish(future: asyncio.Future[Any], reply: Any) -> None:
    if not future.done():
        future.set_result(reply)
