"""Send requests and releases: each by itself, or several of one name in one call.

Those that tasks make in the same tick of a loop travel together, which costs the server little more
than a single one. Most are packed in advance. Nothing here waits: acquisitions act on the replies
to requests, and futures have those to releases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from slotwise.redis import _protocol
from slotwise.redis._net.call import Call, fail_future
from slotwise.redis._protocol import HELD, MOST_AT_ONCE, NOT_HELD, Released

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord, SharedClient

# ------------------------------------------------------------------------ requests


def send_request(acquisition: RedisAcquisition, *, again: bool) -> None:
    """Send a request now, at the end of this tick, or together with a release.

    Requests of one loop for one name keep their order.
    """
    client, record = acquisition.client, acquisition.record
    has_id_alone = "*" not in acquisition._acquisition_id  # one slot of each, in its turn
    simple = acquisition.waits and not (again or acquisition.has_own_word) and has_id_alone
    batch: list[RedisAcquisition] | None = client.pending_requests.get(record)
    if batch is not None:
        if simple and batch[0].limit is acquisition.limit:
            batch.append(acquisition)
            return
        send_requests(client, record)  # behind them: nobody passes them
    elif simple and (not record.is_semaphore or record in client.queued_by_name):
        # All who wait for a semaphore are in one queue, so a request that has to wait anyway can be
        # sent with the next release of this loop, or with those of this tick: before them, so that
        # it is queued while all slots are still taken. Of tiers, another key may have a free slot.
        one_queue = record.is_semaphore
        linger = one_queue and record in client.holding
        connection = client.connection_for(record.keys.slot)
        if connection is not None and (linger or not connection.is_last_in_tick()):
            client.pending_requests[record] = [acquisition]
            send = partial(send_requests, client, record)
            connection.before_flush(send, linger=linger, first=one_queue)
            return
    _request(client, record, [acquisition], again=again)


def send_requests(client: LoopClient, record: NameRecord) -> None:
    """Send the requests that wait to be sent together."""
    pending: list[RedisAcquisition] = client.pending_requests.pop(record, [])
    waiting = [each for each in pending if not each.future.done()]
    for at in range(0, len(waiting), MOST_AT_ONCE):
        _request(client, record, waiting[at : at + MOST_AT_ONCE], again=False)


def _request(
    client: LoopClient, record: NameRecord, batch: list[RedisAcquisition], *, again: bool
) -> None:
    first = batch[0]
    due, wait = _due(first), first.waits

    def answered(call: Call, reply: Any) -> None:
        failed = isinstance(reply, BaseException)
        replies = [reply] * len(batch) if failed or len(batch) == 1 else reply[1:]
        for each, own in zip(batch, replies, strict=True):
            each.on_reply(call, own)

    call = Call(
        _protocol.REQUEST,
        record.keys.all,
        lambda: _protocol.request_args(batch, wait=wait, again=again, due=due),
        answered if len(batch) > 1 else first.on_reply,
        record.keys.slot,
    )
    call.again_at = _protocol.AGAIN_AT
    if len(batch) == 1:
        call.alone = True
        call.eager = not client.queued_by_name
        call.patient = again and wait
        # On a cluster it isn't: where names are noted changes.
        if wait and not (again or first.has_own_word or first.shared.cluster):
            # Most of a request is always the same: packing it each time would cost as much as
            # everything else.
            call.packed = _protocol.pack_request(first, due)
    for each in batch:
        each.call = call
        each.in_batch = len(batch) > 1
    client.submit(call)


def _due(acquisition: RedisAcquisition) -> bytes:
    """Return whether to ask when the next check is due: only if none is scheduled."""
    if acquisition.limit._rates:
        return b"due"  # the time that it waits for may come before the next check
    has_check = acquisition.shared.heartbeat_thread.heartbeats.has_check(acquisition.record)
    return b"" if has_check else b"due"


# ------------------------------------------------------------------------ releases

_Batch = list[tuple[str, "asyncio.Future[Released]"]]


def send_release(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    item: str,
    *,
    count: bool = False,
) -> asyncio.Future[Released]:
    """End an acquisition on the server, held or waiting; ``item`` is as lua/release.lua says.

    The messages of the reply are dispatched when it comes. A caller that stops waiting
    doesn't stop the call.
    """
    future: asyncio.Future[Released] = client.loop.create_future()
    connection = client.connection_for(record.keys.slot)
    if count or connection is None or "*" in item or connection.is_last_in_tick():
        _release(shared, record, client, [(item, future)], count=count)
        return future
    batch: _Batch | None = client.pending_releases.get(record)
    if batch is None:
        client.pending_releases[record] = batch = []
        connection.before_flush(lambda: _release_pending(shared, record, client))
    batch.append((item, future))
    return future


async def release_all(waiters: Sequence[RedisAcquisition], client: LoopClient) -> None:
    """End waits of one name that nobody will see the end of, in calls of bounded size."""
    await asyncio.gather(
        *(send_release(each.shared, each.record, client, each.unseen_item()) for each in waiters)
    )


def _release_pending(shared: SharedClient, record: NameRecord, client: LoopClient) -> None:
    batch: _Batch = client.pending_releases.pop(record)
    for at in range(0, len(batch), MOST_AT_ONCE):
        _release(shared, record, client, batch[at : at + MOST_AT_ONCE])


def _release(
    shared: SharedClient,
    record: NameRecord,
    client: LoopClient,
    batch: _Batch,
    *,
    count: bool = False,
) -> None:
    def answered(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            for _, future in batch:
                fail_future(future, reply)
            return
        counts, messages = _protocol.split_release(record, reply, count=count)
        outcomes = [_OUTCOMES[digit] for digit in reply[0]]
        if call.doubtful:  # sent twice: the first may have been the one that ended it
            outcomes = [HELD if each is NOT_HELD else each for each in outcomes]
        if counts:
            outcomes = [each._replace(counts=counts) for each in outcomes]
        if messages:
            shared.dispatch_all(messages, record, client)
            # Those that were granted the slots go first: their holds begin, and ours are over.
            client.loop.call_soon(_finish, batch, outcomes)
        else:
            _finish(batch, outcomes)

    items = [item for item, _ in batch]
    args = partial(_protocol.release_args, record, client.token, items, count=count)
    call = Call(_protocol.RELEASE, record.keys.all, args, answered, record.keys.slot)
    if len(batch) == 1:
        call.alone = True
        call.eager = not client.queued_by_name
        if not count:
            call.packed = _protocol.pack_release(record, client.token, items[0])
    client.submit(call)


_OUTCOMES = {ord("0"): NOT_HELD, ord("1"): HELD, ord("2"): _protocol.WAITED}


def _finish(batch: _Batch, outcomes: list[Released]) -> None:
    for (_, future), released in zip(batch, outcomes, strict=True):
        if not future.done():
            future.set_result(released)
