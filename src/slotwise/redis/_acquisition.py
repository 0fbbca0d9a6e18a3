"""Acquisition: one claim of ours on a Redis semaphore, from the request to its end.

It is also what the caller gets. Everything here happens in the thread of the
loop that asked; the server decides, and this only keeps its word to the caller.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotwise._core.closing import Closure, closed_error
from slotwise._core.messages import value_conflict
from slotwise._core.results import AcquisitionResult
from slotwise.errors import AcquireTimeout, BackendError, SemaphoreClosed
from slotwise.redis._diagnosis import Unreachable
from slotwise.redis._net.connection import Call
from slotwise.redis._release_batching import send_release
from slotwise.redis._request_batching import AGAIN_AT, REQUEST, REQUEST_MANY, Source, send_requests
from slotwise.redis._wait_for_grant import TimedOut

if TYPE_CHECKING:
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord, SharedClient


class RedisAcquisition(AcquisitionResult):
    """A request for slots, then a hold on them."""

    __slots__ = (
        "_call",
        "_confirmation",
        "_waits",
        "alive_at",
        "asked_at",
        "client",
        "expires_at",
        "future",
        "interval",
        "label",
        "queued",
        "record",
        "round_trip",
        "semaphore",
        "shared",
        "since",
        "slots",
        "task",
        "ttl",
        "unconfirmed",
    )

    shared: SharedClient
    record: NameRecord
    client: LoopClient

    def __init__(self, semaphore: Source, slots: int, label: str) -> None:
        shared, record = semaphore._attached()
        client = shared.client()
        self.semaphore = semaphore
        self.shared = shared
        self.record = record
        self.client = client
        self.slots = slots
        self.label = label
        self.ttl = semaphore._ttl
        self.interval = semaphore._interval
        self.expires_at = math.inf
        self.since = 0.0
        # When it asked, and when it last did so by itself: the server has had a sign of life
        # since then, if it has answered.
        self.asked_at = self.alive_at = time.monotonic()
        self.round_trip = 0.0  # how long the answer to the request took
        self.queued = False
        self.unconfirmed = False  # the server did not know it: what was granted before is void
        self.task: asyncio.Task[Any] | None = None
        self.future: asyncio.Future[None] = client.loop.create_future()
        count = f"*{slots}" if slots > 1 else ""
        super().__init__(f"sw-{client.token}-{shared.next_number()}{count}", 0)
        self._call: Call | None = None
        self._confirmation: Call | None = None
        self._waits = True

    @property
    def ping_interval(self) -> float:
        return self.semaphore._ping_interval

    @property
    def cancel_after_ttl(self) -> bool:
        return self.semaphore._cancel_task_after_ttl

    @property
    def cancel_on_loss(self) -> bool:
        return self.semaphore._cancel_task_on_loss

    # ---------------------------------------------------------------- asking

    def send_request(self, *, wait: bool, again: bool = False) -> None:
        """Send the request; `future` has the outcome.

        One that will have to stand behind others of this loop may travel
        together with the next ones, or with the next release.
        """
        self._begin(wait)
        client, record, semaphore = self.client, self.record, self.semaphore
        simple = wait and not again and self.slots == 1 and not self.label
        batch: list[RedisAcquisition] | None = client.pending_requests.get(record)
        if batch is not None:
            if simple and batch[0].semaphore is semaphore:
                batch.append(self)
                return
            send_requests(client, record)  # nobody passes them
        elif simple and record in client.queued_by_name and record in client.holding:
            # Soon one of ours releases: this can travel with it.
            connection = client.connection_for(record.keys.slot)
            if connection is not None:
                client.pending_requests[record] = [self]
                connection.before_flush(lambda: send_requests(client, record), linger=True)
                return
        self._send_alone(wait=wait, again=again)

    def _begin(self, wait: bool) -> None:
        """Be kept alive by heartbeats, from before the server can know of it."""
        self._waits = wait
        self.alive_at = time.monotonic()
        self.shared.waiters[self._acquisition_id] = self
        heartbeat_thread = self.shared.heartbeat_thread
        if self.semaphore._ping_interval < heartbeat_thread.interval:
            heartbeat_thread.heartbeat_every(self.semaphore._ping_interval)

    @property
    def needs_heartbeat(self) -> bool:
        """Whether the server may know of this request, be it answered or not."""
        return self.queued or (self._call is not None and self._call.sent)

    def _send_alone(self, *, wait: bool, again: bool = False) -> None:
        semaphore, acquisition_id = self.semaphore, self._acquisition_id
        due = b"" if self.shared.heartbeat_thread.has_check(self.record) else b"due"
        args = [
            b"",
            acquisition_id,
            semaphore._value,
            self.interval,
            b"" if self.ttl is None else self.ttl,
            b"wait" if wait else b"try",
            b"again" if again else b"",
            f"{self.shared.owner} {self.label}",
            self.record.keys.notification,
            due,
        ]
        call = Call(REQUEST, self.record.keys.all, args, self._answered, self.record.keys.slot)
        call.again_at = AGAIN_AT
        call.alone = True
        call.eager = not self.client.queued_by_name
        if wait and not again and not self.label:
            # Most of a request is always the same: packing it anew would cost as much
            # as all the rest.
            first, middle = semaphore._template()
            own = acquisition_id.encode()
            call.packed = b"%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (
                *(first, len(own), own, middle, len(due), due),
            )
        call.patient = again and wait
        self._call = call
        self.client.submit(call)

    def _answered(self, call: Call, reply: Any) -> None:
        if call is not self._call:
            return
        if isinstance(reply, BaseException):
            self._fail(reply)
        else:
            self._on_reply(reply)

    def _on_reply(self, reply: list[Any]) -> None:
        """Act on a reply of request.lua."""
        word = reply[0]
        if word == b"granted":
            self.record.learn(reply[3], self.semaphore._value)
            self._granted(reply[1], reply[2])
            messages = reply[4:]
        elif word == b"queued":
            messages = reply[3:]
            self._queued(reply[1], reply[2])
        elif word == b"busy":
            self._fail(self._full_error(0.0, *reply[1:4]))
            messages = reply[4:]
        elif word == b"closed":
            messages = []
            self._fail(self.closed_error(read_closure(reply[1:])))
        else:
            messages = []
            self._fail(self._refusal(word, *reply[1:]))
        for message in messages:
            self.shared.dispatch(message)

    def _queued(self, value: int, due_ms: int) -> None:
        self.record.learn(value, self.semaphore._value)
        if self.future.done():
            return
        self.round_trip = time.monotonic() - self.alive_at
        self._mark_queued()
        self.shared.heartbeat_thread.schedule_check(self.record, due_ms)

    def dispatch(self, word: str, more: list[str]) -> None:
        """What a message, or a heartbeat, has to tell."""
        if self.future.done():
            return
        if word == "granted":
            try:
                number, token = map(int, more)
            except ValueError:  # a spoilt claim; the next heartbeat asks again
                return
            self._granted(number, token)
        elif word == "look":
            if self.queued:
                self.confirm()
        elif word == "gone":
            # The server forgot it, or thought it dead: to the end of the line.
            if self.queued:
                self._mark_unqueued()
                self.send_request(wait=self._waits, again=True)
        elif word == "closed":
            self._fail(self.closed_error(Closure(" ".join(more) if more else None)))
        elif word == "refused":
            self._fail(self._refusal(b"too many", int(more[0])))

    def _granted(self, number: int, token: int) -> None:
        shared, acquisition_id = self.shared, self._acquisition_id
        self.since = since = time.monotonic()
        late = since - max(self.alive_at, self.record.heartbeat_at) >= self.interval
        unconfirmed = late or self.unconfirmed or self._confirmation is not None
        if unconfirmed and not self.future.done():
            # After so long a silence the server may have given the slot to somebody else.
            self.confirm()
            return
        shared.waiters.pop(acquisition_id, None)
        self._mark_unqueued()
        if self.future.done():
            return  # cancelled or timed out: who waited gives it back by itself
        self._slot_number = number
        self._fencing_token = token
        shared.holders[acquisition_id] = self
        self.client.holding.setdefault(self.record, set()).add(acquisition_id)
        if self.ttl is not None:
            self.expires_at = since + self.ttl
            shared.heartbeat_thread.schedule_ttl(self.expires_at)
        self.future.set_result(None)

    def confirm(self) -> None:
        """Ask the server what became of this request, and act on the answer.

        This is a heartbeat of its own: what it finds granted is renewed.
        """
        if self._confirmation is not None:
            return  # the answer is under way
        self.unconfirmed = False  # until something else is heard
        sent_at = time.monotonic()

        def answered(_: Call, reply: Any) -> None:
            self._confirmation = None
            if self.future.done():
                return
            if isinstance(reply, BaseException):
                self._fail(reply)
                return
            [[due_ms, *outcomes]] = reply
            self.alive_at = sent_at
            self._mark_queued()  # unless the answer says otherwise
            for outcome in outcomes:
                self.shared.dispatch(outcome)
            if self.queued:
                self.shared.heartbeat_thread.schedule_check(self.record, due_ms)

        keys = self.record.keys
        args = [
            b"",
            self.client.token,
            self.interval,
            keys.notification,
            0,
            1,
            self._acquisition_id,
        ]
        call = self._confirmation = Call(self.record.heartbeat, keys.all, args, answered, keys.slot)
        call.patient = self._waits
        self.client.submit(call)

    def _mark_queued(self) -> None:
        if not self.queued:
            self.queued = True
            self.client.queued_by_name[self.record] += 1

    def _mark_unqueued(self) -> None:
        if self.queued:
            self.queued = False
            queued_by_name = self.client.queued_by_name
            queued_by_name[self.record] -= 1
            if queued_by_name[self.record] <= 0:
                del queued_by_name[self.record]

    def mark_ended(self) -> None:
        """Note, in whatever thread, that it holds nothing any more."""
        holding = self.client.holding.get(self.record)
        if holding is not None:
            holding.discard(self._acquisition_id)
            if not holding:
                self.client.holding.pop(self.record, None)

    def _fail(self, error: BaseException) -> None:
        self._mark_unqueued()
        self.shared.waiters.pop(self._acquisition_id, None)
        if not self.future.done():
            self.future.set_exception(error)

    def time_out(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimedOut())

    # ---------------------------------------------------------------- giving

    def send_release(self, client: LoopClient) -> asyncio.Future[Any]:
        """Release, or leave the line, through any seat; the reply counts who is there."""
        return send_release(
            self.shared, self.record, client, self._acquisition_id, self.interval, count=True
        )

    async def withdraw(self, seconds: float) -> Any:
        """End a wait whose outcome nobody will see: leave the line, or hand the grant on.

        Runs to its end, or for so many seconds, even when it is cancelled again.
        Gives the reply; None if nothing was asked, or nothing answered in time. Then it
        goes on in the background, and at the latest the heartbeat's silence frees it. A
        cancellation that came meanwhile is raised at the end, not swallowed.
        """
        shared, call = self.shared, self._call
        shared.waiters.pop(self._acquisition_id, None)
        shared.holders.pop(self._acquisition_id, None)
        self.mark_ended()
        self._mark_unqueued()
        if self._confirmation is not None:
            self._confirmation.patient = False
        if call is not None:
            call.patient = False
            if call.script is not REQUEST_MANY and self.client.withdraw(call):
                return None
        # Through the seat that asked: over another connection it could overtake the request.
        released = self.send_release(self.client)
        released.add_done_callback(self._withdrawn)
        deadline = time.monotonic() + seconds
        interrupted: asyncio.CancelledError | None = None
        while not released.done() and (left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait([released], timeout=left)
            except asyncio.CancelledError as cancelled:
                interrupted = cancelled
        if interrupted is not None:
            raise interrupted
        return released.result() if released.done() else None

    def _withdrawn(self, released: asyncio.Future[Any]) -> None:
        if not released.cancelled() and isinstance(released.exception(), Unreachable):
            self.shared.heartbeat_thread.deliver(self.send_release, self.record, self.interval)

    def close(self) -> bool:
        """Fail since its instance was closed, in its loop's thread; whether the server may know it.

        Then it has to be given back.
        """
        if self.future.done():
            return False  # granted before, or given up: who waited cleans up by itself
        self._fail(self.closed_error(None))
        for call in (self._call, self._confirmation):
            if call is not None:
                call.patient = False
        call = self._call
        if call is None:  # it lingered, and was not sent yet
            return False
        return call.script is REQUEST_MANY or not self.client.withdraw(call)

    async def release_quietly(self) -> None:
        """Give it back for somebody who can't; a failure is left to the heartbeat's silence."""
        try:
            await self.send_release(self.shared.client())
        except BackendError:
            pass

    # ---------------------------------------------------------------- errors

    @property
    def title(self) -> str:
        """What it was asked of, as messages name it."""
        return repr(self.record.name)

    @property
    def asked_for(self) -> str:
        """How much of how much, for a message."""
        return f" for {self.slots} of {self.semaphore.value}"

    def closed_error(self, closure: Closure | None) -> SemaphoreClosed:
        return closed_error(f"{self.title} is", closure)

    def was_granted(self, reply: list[Any]) -> bool:
        """Whether give.lua found it among the holders."""
        return bool(reply[0])

    def timeout_error(self, waited: float, reply: list[Any]) -> AcquireTimeout:
        """Why a wait was in vain, by what give.lua counted."""
        value, held, waiting = reply[2:5]
        return self._full_error(waited, value or self.semaphore.value, held, waiting)

    def _full_error(self, waited: float, value: int, held: int, waiting: int) -> AcquireTimeout:
        return AcquireTimeout(
            f"no slot of {self.record.name!r} in {waited:g} s: {held} of {value} held,"
            f" {waiting} others waiting"
        )

    def _refusal(self, word: bytes, *counts: int) -> Exception:
        name = self.record.name
        if word == b"conflict":
            value, held, waiting = counts
            return value_conflict(
                name, self.semaphore._value, value=value, held=held, waiting=waiting
            )
        return ValueError(
            f"{self.slots} slots asked of {name!r}, which has {counts[0]}:"
            f" that can never be granted"
        )


def read_closure(reason: Sequence[bytes]) -> Closure:
    """What a script says of a name that is closed: its reason, or nothing."""
    return Closure(reason[0].decode() if reason else None)
