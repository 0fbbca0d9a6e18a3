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

_GIVE = load("give")
_GIVE_MANY = load("give_many")
_KICK = load("kick")
_AT_ONCE = 200  # releases in one call

_Batch = list[tuple[str, "asyncio.Future[Any]"]]


def give(
    process: SharedClient,
    room: NameRecord,
    seat: LoopClient,
    acquisition_id: str,
    interval: float,
    *,
    count: bool = False,
) -> asyncio.Future[Any]:
    """Have an acquisition ended: {slots it held, whether it stood in line, counts if asked for}.

    What the reply tells others is passed on when it comes. Who stops waiting
    does not stop the call.
    """
    future: asyncio.Future[Any] = seat.loop.create_future()
    link = seat.link_for(room.keys.slot)
    if count or link is None or "*" in acquisition_id or link.is_lonely():
        _send_one(process, room, seat, acquisition_id, interval, future, count=count)
        return future
    batch: _Batch | None = seat.batches.get((room, interval))
    if batch is None:
        seat.batches[room, interval] = batch = []
        link.before_flush(lambda: _send_batch(process, room, seat, interval))
    batch.append((acquisition_id, future))
    return future


def _send_batch(process: SharedClient, room: NameRecord, seat: LoopClient, interval: float) -> None:
    batch: _Batch = seat.batches.pop((room, interval))
    if len(batch) == 1:
        [(acquisition_id, future)] = batch
        _send_one(process, room, seat, acquisition_id, interval, future)
        return
    for at in range(0, len(batch), _AT_ONCE):
        _send_many(process, room, seat, interval, batch[at : at + _AT_ONCE])


def _send_one(
    process: SharedClient,
    room: NameRecord,
    seat: LoopClient,
    acquisition_id: str,
    interval: float,
    future: asyncio.Future[Any],
    *,
    count: bool = False,
) -> None:
    def given(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            if not future.done():
                future.set_exception(reply)
            return
        if call.doubtful and reply[0] == 0:
            reply[0] = 1  # sent twice: the first may have been the one that freed it
        if len(reply) > 5:
            for message in reply[5:]:
                process.hear(message)
            # Whoever was granted the slot goes first: its hold begins, and ours is over.
            seat.loop.call_soon(_finish, future, reply)
        else:
            _finish(future, reply)

    told = b"count" if count else b""
    args = [b"", acquisition_id, seat.token, interval, room.keys.notification, told]
    call = Call(_GIVE, room.keys.all, args, given, room.keys.slot)
    call.alone = True
    call.eager = not seat.in_line
    if not count:
        first, last = room.give_template(_GIVE.sha, seat.token, interval)
        own = acquisition_id.encode()
        call.packed = b"%b$%d\r\n%b\r\n%b" % (first, len(own), own, last)
    seat.submit(call)


def _send_many(
    process: SharedClient, room: NameRecord, seat: LoopClient, interval: float, batch: _Batch
) -> None:
    def given(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            for _, future in batch:
                if not future.done():
                    future.set_exception(reply)
            return
        for message in reply[1:]:
            process.hear(message)
        seat.loop.call_soon(_finish_all, batch, reply[0], call.doubtful)

    args = [b"", seat.token, interval, room.keys.notification]
    args += [acquisition_id for acquisition_id, _ in batch]
    seat.submit(Call(_GIVE_MANY, room.keys.all, args, given, room.keys.slot))


def kick(
    process: SharedClient, room: NameRecord, seat: LoopClient, acquisition_id: str, interval: float
) -> asyncio.Future[bool]:
    """Have somebody's acquisition ended: whether it held anything."""
    future: asyncio.Future[bool] = seat.loop.create_future()

    def kicked(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            if not future.done():
                future.set_exception(reply)
            return
        for message in reply[1:]:
            process.hear(message)
        # Sent twice: the first may have been the one that ended it.
        _finish(future, bool(reply[0]) or call.doubtful)

    args = [b"", acquisition_id, seat.token, interval, room.keys.notification]
    seat.submit(Call(_KICK, room.keys.all, args, kicked, room.keys.slot))
    return future


def _finish_all(batch: _Batch, digits: bytes, repeated: bool) -> None:
    for (_, future), digit in zip(batch, digits, strict=True):
        _finish(future, [1 if repeated or digit == ord("1") else 0, 0, 0, 0, 0])


def _finish(future: asyncio.Future[Any], reply: Any) -> None:
    if not future.done():
        future.set_result(reply)
