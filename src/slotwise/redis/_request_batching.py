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
_AT_ONCE = 200  # requests in one call


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
    process, room = semaphore._attached()
    keys = room.keys.all
    first = pack_half((b"EVALSHA", REQUEST.sha, len(keys), *keys, b""))
    ttl = b"" if semaphore._ttl is None else semaphore._ttl
    words = (semaphore._value, semaphore._interval, ttl, b"wait", b"", f"{process.who} ")
    middle = pack_half((*words, room.keys.notification))
    return b"*%d\r\n" % (3 + len(keys) + 10) + first, middle


def ask_together(seat: LoopClient, room: NameRecord) -> None:
    """Send the requests that lingered: one call for all of them."""
    lingering: list[RedisAcquisition] = seat.lingering.pop(room, [])
    waiting = [each for each in lingering if not each.future.done()]
    if len(waiting) == 1:
        waiting[0]._ask_alone(wait=True)
        return
    for at in range(0, len(waiting), _AT_ONCE):
        _ask_at_once(seat, room, waiting[at : at + _AT_ONCE])


def _ask_at_once(seat: LoopClient, room: NameRecord, batch: list[RedisAcquisition]) -> None:
    process, semaphore = batch[0].process, batch[0].semaphore

    def answered(_: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            for each in batch:
                each._fail(reply)
        elif reply[0] == b"queued":
            for each in batch:
                each._queued(reply[1], reply[2])
        else:
            for each, own in zip(batch, reply[1:], strict=True):
                each._take(own)

    args = [
        b"",
        semaphore._value,
        semaphore._interval,
        b"" if semaphore._ttl is None else semaphore._ttl,
        b"",
        f"{process.who} ",
        b"" if process.keeper.watches(room) else b"due",
        room.keys.notification,
        *(each._acquisition_id for each in batch),
    ]
    call = Call(REQUEST_MANY, room.keys.all, args, answered, room.keys.slot)
    call.again_at = _MANY_AGAIN_AT
    for each in batch:
        each._call = call
    seat.submit(call)
