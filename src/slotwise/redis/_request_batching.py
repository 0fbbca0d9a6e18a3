"""Send requests, each by itself or several of one name in one call.

Which way a request goes is decided here, for every kind of limit; most are packed in advance.
The acquisition acts on the reply.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from slotwise.redis._net.call import Call

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord


def send_request(acquisition: RedisAcquisition, *, again: bool) -> None:
    """Send a request now, at the end of this tick, or together with a release.

    Requests of one loop for one name keep their order.
    """
    client, record = acquisition.client, acquisition.record
    simple = (
        acquisition.waits
        and not again
        and acquisition.slots == 1
        and not (acquisition.label or acquisition.has_head_start or acquisition.has_own_word)
    )
    batch: list[RedisAcquisition] | None = client.pending_requests.get(record)
    if batch is not None:
        if simple and batch[0].limit is acquisition.limit:
            batch.append(acquisition)
            return
        send_requests(client, record)  # behind them: nobody passes them
    elif simple and (not record.dialect.has_one_queue or record in client.queued_by_name):
        # If all waiters are in one queue, a request that has to wait anyway can be sent with
        # the next release of this loop, or with those of this tick: before them, so that it is
        # queued while all slots are still taken.
        one_queue = record.dialect.has_one_queue
        linger = one_queue and record in client.holding
        connection = client.connection_for(record.keys.slot)
        if connection is not None and (linger or not connection.is_last_in_tick()):
            client.pending_requests[record] = [acquisition]
            send = partial(send_requests, client, record)
            connection.before_flush(send, linger=linger, first=one_queue)
            return
    _send_alone(acquisition, again=again, simple=simple)


def send_requests(client: LoopClient, record: NameRecord) -> None:
    """Send the requests that wait to be sent together."""
    pending: list[RedisAcquisition] = client.pending_requests.pop(record, [])
    waiting = [each for each in pending if not each.future.done()]
    if len(waiting) == 1:
        _send_alone(waiting[0], again=False, simple=True)
        return
    most = record.dialect.most_at_once
    for at in range(0, len(waiting), most):
        _send_together(client, record, waiting[at : at + most])


def _send_alone(acquisition: RedisAcquisition, *, again: bool, simple: bool) -> None:
    record, wait = acquisition.record, acquisition.waits
    dialect, keys = record.dialect, record.keys
    due = _due(acquisition)
    args = partial(dialect.request_args, acquisition, wait=wait, again=again, due=due)
    limits = acquisition.limit._limits
    call = Call(dialect.request, keys.all, args, acquisition.on_reply, keys.slot, limits)
    call.again_at = dialect.request_again_at
    call.alone = True
    call.eager = not acquisition.client.queued_by_name
    call.patient = again and wait
    if simple or (wait and not (again or acquisition.label or acquisition.has_own_word)):
        # Most of a request is always the same: packing it each time would cost as much as
        # everything else.
        call.packed = dialect.pack_request(acquisition, due)
    acquisition.call = call
    acquisition.in_batch = False
    acquisition.client.submit(call)


def _send_together(client: LoopClient, record: NameRecord, batch: list[RedisAcquisition]) -> None:
    dialect, keys = record.dialect, record.keys

    def answered(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException) or reply[0] == b"queued":
            replies = [reply] * len(batch)
        else:
            replies = reply[1:]
        for each, own in zip(batch, replies, strict=True):
            each.on_reply(call, own)

    args = dialect.request_many_args(batch, _due(batch[0]))
    limits = batch[0].limit._limits  # the same for all: they are requests of one object
    call = Call(dialect.request_many, keys.all, args, answered, keys.slot, limits)
    call.again_at = dialect.request_many_again_at
    for each in batch:
        each.call = call
        each.in_batch = True
    client.submit(call)


def _due(acquisition: RedisAcquisition) -> bytes:
    """Return whether to ask when the next check is due: only if none is scheduled."""
    if acquisition.limit._rates:
        return b"due"  # the time that it waits for may come before that
    has_check = acquisition.shared.heartbeat_thread.checks.is_scheduled(acquisition.record)
    return b"" if has_check else b"due"
