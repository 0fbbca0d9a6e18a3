"""How requests travel: one by itself, mostly packed beforehand, or all of a moment as one call.

Which way one goes is decided by `RedisAcquisition.ask`, and the acquisitions take the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from slotwise.redis._net.connection import Call, pack_half
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise._core.closing import Generation
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._config import RedisConfig
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord, SharedClient

REQUEST = load("request")
REQUEST_MANY = load("request_many")
AGAIN_AT = 6  # which argument of request.lua says "again"
_MANY_AGAIN_AT = 4  # and which of request_many.lua
_MOST_AT_ONCE = 200  # requests in one call


class Source(Protocol):
    """What an acquisition wants to know of the object that it was asked of."""

    _cancel_task_after_ttl: bool
    _cancel_task_on_loss: bool
    _config: RedisConfig
    _generation: Generation
    _interval: float
    _ping_interval: float
    _ttl: float | None
    _value: int

    @property
    def name(self) -> str | None: ...

    @property
    def value(self) -> int: ...

    def _attached(self) -> tuple[SharedClient, NameRecord]: ...

    def _template(self) -> tuple[bytes, ...]: ...


def request_template(semaphore: Source) -> tuple[bytes, bytes]:
    """What stands before the id, and between the id and the last word."""
    shared, record = semaphore._attached()
    keys = record.keys.all
    first = pack_half((b"EVALSHA", REQUEST.sha, len(keys), *keys, b""))
    ttl = b"" if semaphore._ttl is None else semaphore._ttl
    words = (semaphore._value, semaphore._interval, ttl, b"wait", b"", f"{shared.owner} ")
    middle = pack_half((*words, record.keys.notification))
    return b"*%d\r\n" % (3 + len(keys) + 10) + first, middle


def send_requests(client: LoopClient, record: NameRecord) -> None:
    """Send the requests that lingered: one call for all of them."""
    pending_requests: list[RedisAcquisition] = client.pending_requests.pop(record, [])
    waiting = [each for each in pending_requests if not each.future.done()]
    if len(waiting) == 1:
        waiting[0]._send_alone(wait=True)
        return
    for at in range(0, len(waiting), _MOST_AT_ONCE):
        _send_together(client, record, waiting[at : at + _MOST_AT_ONCE])


def _send_together(client: LoopClient, record: NameRecord, batch: list[RedisAcquisition]) -> None:
    shared, semaphore = batch[0].shared, batch[0].semaphore

    def answered(_: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            for each in batch:
                each._fail(reply)
        elif reply[0] == b"queued":
            for each in batch:
                each._queued(reply[1], reply[2])
        else:
            for each, own in zip(batch, reply[1:], strict=True):
                each._on_reply(own)

    args = [
        b"",
        semaphore._value,
        semaphore._interval,
        b"" if semaphore._ttl is None else semaphore._ttl,
        b"",
        f"{shared.owner} ",
        b"" if shared.heartbeat_thread.has_check(record) else b"due",
        record.keys.notification,
        *(each._acquisition_id for each in batch),
    ]
    call = Call(REQUEST_MANY, record.keys.all, args, answered, record.keys.slot)
    call.again_at = _MANY_AGAIN_AT
    for each in batch:
        each._call = call
    client.submit(call)
