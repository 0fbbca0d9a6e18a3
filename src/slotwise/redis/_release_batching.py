"""Send releases, those of one tick in one call.

Releases that tasks make in the same tick of a loop are sent as one script call, which
costs the server little more than a single one. Nothing here waits; the futures have the
replies.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from slotwise.redis._dialect import HELD, NOT_HELD, Released
from slotwise.redis._net.call import Call, fail_future

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._call_limits import CallLimits
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._scripts import Script
    from slotwise.redis._shared_client import NameRecord, SharedClient

_Batch = list[tuple[str, "asyncio.Future[Released]"]]


def send_release(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    acquisition_id: str,
    interval: float,
    limits: CallLimits,
    *,
    count: bool = False,
) -> asyncio.Future[Released]:
    """End an acquisition on the server, held or waiting.

    The messages of the reply are dispatched when it comes. A caller that stops waiting
    doesn't stop the call.
    """
    future: asyncio.Future[Released] = client.loop.create_future()
    connection = client.connection_for(record.keys.slot)
    if count or connection is None or "*" in acquisition_id or connection.is_last_in_tick():
        _send_one(shared, record, client, acquisition_id, interval, limits, future, count=count)
        return future
    key = record, interval, limits
    batch: _Batch | None = client.pending_releases.get(key)
    if batch is None:
        client.pending_releases[key] = batch = []
        connection.before_flush(lambda: _send_batch(shared, record, client, interval, limits))
    batch.append((acquisition_id, future))
    return future


async def release_all(one: RedisAcquisition, client: LoopClient, ids: list[str]) -> None:
    """End many acquisitions of one name, ``one`` among them, in calls of bounded size."""
    shared, record, interval, limits = one.shared, one.record, one.interval, one.limit._limits
    sent = (send_release(shared, record, client, each, interval, limits) for each in ids)
    await asyncio.gather(*sent)


def _send_batch(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    interval: float,
    limits: CallLimits,
) -> None:
    batch: _Batch = client.pending_releases.pop((record, interval, limits))
    if len(batch) == 1:
        [(acquisition_id, future)] = batch
        _send_one(shared, record, client, acquisition_id, interval, limits, future)
        return
    most = record.dialect.most_at_once
    for at in range(0, len(batch), most):
        _send_many(shared, record, client, interval, limits, batch[at : at + most])


def _send_one(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    acquisition_id: str,
    interval: float,
    limits: CallLimits,
    future: asyncio.Future[Released],
    *,
    count: bool = False,
) -> None:
    dialect, keys = record.dialect, record.keys

    def answered(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            fail_future(future, reply)
            return
        released, messages = dialect.read_release(reply)
        if call.doubtful and not (released.held or released.waited):
            # Sent twice: the first may have been the one that freed it.
            released = released._replace(held=True)
        if messages:
            shared.dispatch_all(messages, record, client)
            # The one that was granted the slot goes first: its hold begins, and ours is over.
            client.loop.call_soon(_finish, future, released)
        else:
            _finish(future, released)

    args = partial(
        dialect.release_args, record, client.token, interval, acquisition_id, count=count
    )
    call = Call(dialect.release, keys.all, args, answered, keys.slot, limits)
    call.alone = True
    call.eager = not client.queued_by_name
    if not count:
        first, last = record.release_template(client.token, interval)
        own = acquisition_id.encode()
        call.packed = b"%b$%d\r\n%b\r\n%b" % (first, len(own), own, last)
    client.submit(call)


def _send_many(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    interval: float,
    limits: CallLimits,
    batch: _Batch,
) -> None:
    dialect, keys = record.dialect, record.keys

    def answered(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            for _, future in batch:
                fail_future(future, reply)
            return
        digits, messages = dialect.read_release_many(reply)
        shared.dispatch_all(messages, record, client)
        client.loop.call_soon(_finish_all, batch, digits, call.doubtful)

    ids = [acquisition_id for acquisition_id, _ in batch]
    args = dialect.release_many_args(record, client.token, interval, ids)
    client.submit(Call(dialect.release_many, keys.all, args, answered, keys.slot, limits))


def send_kick(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    script: Script,
    args: list[Any],
    limits: CallLimits,
) -> asyncio.Future[bool]:
    """End somebody's acquisition on the server; return whether it held anything."""
    future: asyncio.Future[bool] = client.loop.create_future()

    def answered(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            fail_future(future, reply)
            return
        shared.dispatch_all(reply[1:], record, client)
        if not future.done():
            # Sent twice: the first may have been the one that ended it.
            future.set_result(bool(reply[0]) or call.doubtful)

    client.submit(Call(script, record.keys.all, args, answered, record.keys.slot, limits))
    return future


def _finish_all(batch: _Batch, digits: bytes, repeated: bool) -> None:
    for (_, future), digit in zip(batch, digits, strict=True):
        _finish(future, HELD if repeated or digit == ord("1") else NOT_HELD)


def _finish(future: asyncio.Future[Released], released: Released) -> None:
    if not future.done():
        future.set_result(released)
