"""PathAcquisition: one claim of ours on a path, from the request to its end.

It differs from a claim on a semaphore in what is asked and answered. How an
answer is waited for, kept alive, lost or withdrawn is the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from slotwise._core.closing import Closure, closed_error
from slotwise.errors import AcquireTimeout, SemaphoreClosed
from slotwise.redis._acquisition import RedisAcquisition, read_closure
from slotwise.redis._net.connection import Call, pack_half
from slotwise.redis._path_keys import PathKeys, read_node, write_path
from slotwise.redis._scripts import load
from slotwise.redis._shared_client import NameRecord

if TYPE_CHECKING:
    from slotwise._core.paths import Path
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._paths import RedisPaths
    from slotwise.redis._shared_client import SharedClient

_REQUEST = load("path_request")
_RELEASE = load("path_give")
_AGAIN_AT = 8  # which argument of path_request.lua says "again"
_MOST_AT_ONCE = 500  # ids in one call


class PathRecord(NameRecord):
    """What a Tiers object knows of its keys."""

    __slots__ = ()

    heartbeat = load("path_beat")

    def __init__(self, keys: PathKeys) -> None:
        super().__init__(keys)

    async def release_all(
        self,
        shared: SharedClient,
        client: LoopClient,
        ids: list[str],
        interval: float,  # noqa: ARG002 - there are no foreign waiters here
    ) -> None:
        some = (ids[at : at + _MOST_AT_ONCE] for at in range(0, len(ids), _MOST_AT_ONCE))
        await asyncio.gather(*(send_release(shared, self, client, each) for each in some))

    def continue_serving(self, shared: SharedClient, client: LoopClient) -> None:
        """Have the server look at those for whom one call was not enough."""

        def answered(_: Call, reply: Any) -> None:
            if isinstance(reply, BaseException):
                return  # those who wait will look again
            [[due, *messages]] = reply
            for message in messages:
                shared.dispatch(message)
            if due == 0:
                self.continue_serving(shared, client)

        args = [b"", client.token, 0, b"", 0, 0]
        client.submit(Call(self.heartbeat, self.keys.all, args, answered, self.keys.slot))


def request_template(paths: RedisPaths) -> tuple[bytes, bytes, bytes]:
    """What stands before the id, between the path and who asks, and who asks."""
    shared, record = paths._attached()
    keys = record.keys.all
    first = pack_half((b"EVALSHA", _REQUEST.sha, len(keys), *keys, b""))
    ttl = b"-" if paths._ttl is None else paths._ttl
    middle = pack_half((paths._shape, paths._declared, paths._interval, ttl, b"wait", b""))
    return b"*%d\r\n" % (3 + len(keys) + 11) + first, middle, pack_half((f"{shared.owner} ",))


class RedisPathAcquisition(RedisAcquisition):
    """A request for one slot of every tier, then a hold on them."""

    __slots__ = ("_resting", "path", "paths")

    record: PathRecord

    def __init__(self, paths: RedisPaths, path: Path, label: str) -> None:
        super().__init__(paths, 1, label)
        self.paths = paths
        self.path = path
        self._resting = False

    # ---------------------------------------------------------------- asking

    def send_request(self, *, wait: bool, again: bool = False) -> None:
        """Send the request; `future` has the outcome."""
        paths, path = self.paths, write_path(self.path)
        due = b"" if self.shared.heartbeat_thread.has_check(self.record) else b"due"
        args = [
            b"",
            self._acquisition_id,
            path,
            paths._shape,
            paths._declared,
            self.interval,
            b"-" if self.ttl is None else self.ttl,
            b"wait" if wait else b"try",
            b"again" if again else b"",
            f"{self.shared.owner} {self.label}",
            due,
        ]
        call = Call(_REQUEST, self.record.keys.all, args, self._answered, self.record.keys.slot)
        call.again_at = _AGAIN_AT
        call.alone = True
        call.eager = not self.client.queued_by_name
        call.patient = again and wait
        if wait and not again and not self.label:
            # Most of a request is always the same.
            first, middle, last = paths._template()
            own = _bulk(self._acquisition_id.encode()) + _bulk(path.encode())
            call.packed = first + own + middle + last + _bulk(due)
        self._call = call
        self._begin(wait)
        self.client.submit(call)

    def _on_reply(self, reply: list[Any]) -> None:
        """Act on a reply of path_request.lua."""
        word = reply[0]
        unfinished, messages = 0, []
        if word == b"granted":
            self._granted(reply[1], reply[2])
            unfinished, messages = reply[3], reply[4:]
        elif word == b"queued":
            self._queued(self.paths.value, reply[1])
            unfinished, messages = reply[2], reply[3:]
        elif word == b"busy":
            self._fail(self._full(0.0, *reply[1:5]))
            messages = reply[5:]
        elif word == b"closed":
            self._fail(self.closed_error(read_closure(reply[1:])))
        else:
            self._fail(self.paths._conflict(*reply[1:3]))
        for message in messages:
            self.shared.dispatch(message)
        if unfinished:
            self.record.continue_serving(self.shared, self.client)

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self.mark_ended()

    def mark_ended(self) -> None:
        super().mark_ended()
        if not self._resting:
            self._resting = True
            self.paths._idle.leave(self.path)

    # ---------------------------------------------------------------- giving

    def send_release(self, client: LoopClient) -> asyncio.Future[Any]:
        """Release, or leave the line, through any seat."""
        return send_release(self.shared, self.record, client, [self._acquisition_id])

    async def release_quietly(self) -> None:
        self.mark_ended()
        await super().release_quietly()

    # ---------------------------------------------------------------- errors

    @property
    def title(self) -> str:
        return self.paths._title

    @property
    def asked_for(self) -> str:
        return ""  # each tier has a value of its own

    def closed_error(self, closure: Closure | None) -> SemaphoreClosed:
        return closed_error(f"{self.title} are", closure)

    def was_granted(self, reply: list[Any]) -> bool:
        return bool(reply[0] == b"1")

    def timeout_error(self, waited: float, reply: list[Any]) -> AcquireTimeout:
        return self._full(waited, *reply[2:6])

    def _full(
        self, waited: float, node: bytes, value: int, held: int, waiting: int
    ) -> AcquireTimeout:
        where = "it came just too late"
        if node:
            which = self.paths._node(*read_node(node))
            where = f"{which}: {held} of {value or 'any number'} held, {waiting} others waiting"
        return AcquireTimeout(f"no slot of {self.title} in {waited:g} s; {where}")


def send_release(
    shared: SharedClient, record: PathRecord, client: LoopClient, ids: list[str]
) -> asyncio.Future[list[Any]]:
    """Have acquisitions ended: the reply of path_give.lua.

    What the reply tells others is passed on when it comes. Who stops waiting
    does not stop the call.
    """
    future: asyncio.Future[list[Any]] = client.loop.create_future()

    def released(call: Call, reply: Any) -> None:
        if isinstance(reply, BaseException):
            if not future.done():
                future.set_exception(reply)
            return
        if call.doubtful:  # sent twice: the first may have been the one that freed it
            reply[0] = reply[0].replace(b"0", b"1")
        if reply[1]:
            record.continue_serving(shared, client)
        for message in reply[6:]:
            shared.dispatch(message)
        if not future.done():
            future.set_result(reply)

    call = Call(_RELEASE, record.keys.all, [b"", client.token, *ids], released, record.keys.slot)
    call.alone = len(ids) == 1
    call.eager = not client.queued_by_name
    client.submit(call)
    return future


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)
