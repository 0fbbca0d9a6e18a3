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
from slotwise.redis._release_batching import give
from slotwise.redis._request_batching import AGAIN_AT, REQUEST, REQUEST_MANY, Source, ask_together
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
        "doubtful",
        "expires_at",
        "future",
        "interval",
        "label",
        "process",
        "queued",
        "room",
        "seat",
        "semaphore",
        "since",
        "slots",
        "task",
        "ttl",
    )

    process: SharedClient
    room: NameRecord
    seat: LoopClient

    def __init__(self, semaphore: Source, slots: int, label: str) -> None:
        process, room = semaphore._attached()
        seat = process.seat()
        self.semaphore = semaphore
        self.process = process
        self.room = room
        self.seat = seat
        self.slots = slots
        self.label = label
        self.ttl = semaphore._ttl
        self.interval = semaphore._interval
        self.expires_at = math.inf
        self.since = 0.0
        # When it asked, and when it last did so by itself: the server has had a sign of life
        # since then, if it has answered.
        self.asked_at = self.alive_at = time.monotonic()
        self.queued = False
        self.doubtful = False  # the server did not know it: what was granted before is void
        self.task: asyncio.Task[Any] | None = None
        self.future: asyncio.Future[None] = seat.loop.create_future()
        count = f"*{slots}" if slots > 1 else ""
        super().__init__(f"sw-{seat.token}-{process.next_number()}{count}", 0)
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

    def ask(self, *, wait: bool, again: bool = False) -> None:
        """Send the request; `future` has the outcome.

        One that will have to stand behind others of this loop may travel
        together with the next ones, or with the next release.
        """
        self._begin(wait)
        seat, room, semaphore = self.seat, self.room, self.semaphore
        simple = wait and not again and self.slots == 1 and not self.label
        batch: list[RedisAcquisition] | None = seat.lingering.get(room)
        if batch is not None:
            if simple and batch[0].semaphore is semaphore:
                batch.append(self)
                return
            ask_together(seat, room)  # nobody passes them
        elif simple and room in seat.in_line and room in seat.holding:
            # Soon one of ours releases: this can travel with it.
            link = seat.link_for(room.keys.slot)
            if link is not None:
                seat.lingering[room] = [self]
                link.before_flush(lambda: ask_together(seat, room), linger=True)
                return
        self._ask_alone(wait=wait, again=again)

    def _begin(self, wait: bool) -> None:
        """Be kept alive by heartbeats, from before the server can know of it."""
        self._waits = wait
        self.alive_at = time.monotonic()
        self.process.waiters[self._acquisition_id] = self
        keeper = self.process.keeper
        if self.semaphore._ping_interval < keeper.interval:
            keeper.hurry(self.semaphore._ping_interval)

    @property
    def needs_heartbeat(self) -> bool:
        """Whether the server may know of this request, be it answered or not."""
        return self.queued or (self._call is not None and self._call.sent)

    def _ask_alone(self, *, wait: bool, again: bool = False) -> None:
        semaphore, acquisition_id = self.semaphore, self._acquisition_id
        due = b"" if self.process.keeper.watches(self.room) else b"due"
        args = [
            b"",
            acquisition_id,
            semaphore._value,
            self.interval,
            b"" if self.ttl is None else self.ttl,
            b"wait" if wait else b"try",
            b"again" if again else b"",
            f"{self.process.who} {self.label}",
            self.room.keys.notification,
            due,
        ]
        call = Call(REQUEST, self.room.keys.all, args, self._answered, self.room.keys.slot)
        call.again_at = AGAIN_AT
        call.alone = True
        call.eager = not self.seat.in_line
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
        self.seat.submit(call)

    def _answered(self, call: Call, reply: Any) -> None:
        if call is not self._call:
            return
        if isinstance(reply, BaseException):
            self._fail(reply)
        else:
            self._take(reply)

    def _take(self, reply: list[Any]) -> None:
        """Act on a reply of request.lua."""
        word = reply[0]
        if word == b"granted":
            self.room.learn(reply[3], self.semaphore._value)
            self._granted(reply[1], reply[2])
            told = reply[4:]
        elif word == b"queued":
            told = reply[3:]
            self._queued(reply[1], reply[2])
        elif word == b"busy":
            self._fail(self.timeout_error(0.0, *reply[1:4]))
            told = reply[4:]
        elif word == b"closed":
            told = []
            self._fail(self.closed_error(read_closure(reply[1:])))
        else:
            told = []
            self._fail(self._refusal(word, *reply[1:]))
        for message in told:
            self.process.hear(message)

    def _queued(self, value: int, due_ms: int) -> None:
        self.room.learn(value, self.semaphore._value)
        if self.future.done():
            return
        self._stand_in_line()
        self.process.keeper.watch(self.room, due_ms)

    def hear(self, word: str, more: list[str]) -> None:
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
                self._leave_line()
                self.ask(wait=self._waits, again=True)
        elif word == "closed":
            self._fail(self.closed_error(Closure(" ".join(more) if more else None)))
        elif word == "refused":
            self._fail(self._refusal(b"too many", int(more[0])))

    def _granted(self, number: int, token: int) -> None:
        process, acquisition_id = self.process, self._acquisition_id
        self.since = since = time.monotonic()
        late = since - max(self.alive_at, self.room.heard_at) >= self.interval
        doubtful = late or self.doubtful or self._confirmation is not None
        if doubtful and not self.future.done():
            # After so long a silence the server may have given the slot to somebody else.
            self.confirm()
            return
        process.waiters.pop(acquisition_id, None)
        self._leave_line()
        if self.future.done():
            return  # cancelled or timed out: who waited gives it back by itself
        self._slot_number = number
        self._fencing_token = token
        process.holders[acquisition_id] = self
        self.seat.holding.setdefault(self.room, set()).add(acquisition_id)
        if self.ttl is not None:
            self.expires_at = since + self.ttl
            process.keeper.watch_ttl(self.expires_at)
        self.future.set_result(None)

    def confirm(self) -> None:
        """Ask the server what became of this request, and act on the answer.

        This is a heartbeat of its own: what it finds granted is renewed.
        """
        if self._confirmation is not None:
            return  # the answer is under way
        self.doubtful = False  # until something else is heard
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
            self._stand_in_line()  # unless the answer says otherwise
            for outcome in outcomes:
                self.process.hear(outcome)
            if self.queued:
                self.process.keeper.watch(self.room, due_ms)

        keys = self.room.keys
        args = [b"", self.seat.token, self.interval, keys.notification, 0, 1, self._acquisition_id]
        call = self._confirmation = Call(self.room.beat, keys.all, args, answered, keys.slot)
        call.patient = self._waits
        self.seat.submit(call)

    def _stand_in_line(self) -> None:
        if not self.queued:
            self.queued = True
            self.seat.in_line[self.room] += 1

    def _leave_line(self) -> None:
        if self.queued:
            self.queued = False
            in_line = self.seat.in_line
            in_line[self.room] -= 1
            if in_line[self.room] <= 0:
                del in_line[self.room]

    def let_go(self) -> None:
        """Note, in whatever thread, that it holds nothing any more."""
        holding = self.seat.holding.get(self.room)
        if holding is not None:
            holding.discard(self._acquisition_id)
            if not holding:
                self.seat.holding.pop(self.room, None)

    def _fail(self, error: BaseException) -> None:
        self._leave_line()
        self.process.waiters.pop(self._acquisition_id, None)
        if not self.future.done():
            self.future.set_exception(error)

    def time_out(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimedOut())

    # ---------------------------------------------------------------- giving

    def give(self, seat: LoopClient) -> asyncio.Future[Any]:
        """Release, or leave the line, through any seat; the reply counts who is there."""
        return give(self.process, self.room, seat, self._acquisition_id, self.interval, count=True)

    async def withdraw(self, seconds: float) -> Any:
        """End a wait whose outcome nobody will see: leave the line, or hand the grant on.

        Runs to its end, or for so many seconds, even when it is cancelled again.
        Gives the reply; None if nothing was asked, or nothing answered in time. Then it
        goes on in the background, and at the latest the heartbeat's silence frees it. A
        cancellation that came meanwhile is raised at the end, not swallowed.
        """
        process, call = self.process, self._call
        process.waiters.pop(self._acquisition_id, None)
        process.holders.pop(self._acquisition_id, None)
        self.let_go()
        self._leave_line()
        if self._confirmation is not None:
            self._confirmation.patient = False
        if call is not None:
            call.patient = False
            if call.script is not REQUEST_MANY and self.seat.withdraw(call):
                return None
        # Through the seat that asked: over another connection it could overtake the request.
        given = self.give(self.seat)
        given.add_done_callback(self._withdrawn)
        deadline = time.monotonic() + seconds
        interrupted: asyncio.CancelledError | None = None
        while not given.done() and (left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait([given], timeout=left)
            except asyncio.CancelledError as cancelled:
                interrupted = cancelled
        if interrupted is not None:
            raise interrupted
        return given.result() if given.done() else None

    def _withdrawn(self, given: asyncio.Future[Any]) -> None:
        if not given.cancelled() and isinstance(given.exception(), Unreachable):
            self.process.keeper.deliver(self.give, self.room, self.interval)

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
        return call.script is REQUEST_MANY or not self.seat.withdraw(call)

    async def give_back(self) -> None:
        """Give it back for somebody who can't; a failure is left to the heartbeat's silence."""
        try:
            await self.give(self.process.seat())
        except BackendError:
            pass

    # ---------------------------------------------------------------- errors

    @property
    def title(self) -> str:
        """What it was asked of, as messages name it."""
        return repr(self.room.name)

    def closed_error(self, closure: Closure | None) -> SemaphoreClosed:
        return closed_error(f"{self.title} is", closure)

    def was_granted(self, reply: list[Any]) -> bool:
        """Whether give.lua found it among the holders."""
        return bool(reply[0])

    def vain_error(self, waited: float, reply: list[Any]) -> AcquireTimeout:
        """Why a wait was in vain, by what give.lua counted."""
        value, held, waiting = reply[2:5]
        return self.timeout_error(waited, value or self.semaphore.value, held, waiting)

    def timeout_error(self, waited: float, value: int, held: int, waiting: int) -> AcquireTimeout:
        return AcquireTimeout(
            f"no slot of {self.room.name!r} in {waited:g} s: {held} of {value} held,"
            f" {waiting} others waiting"
        )

    def _refusal(self, word: bytes, *counts: int) -> Exception:
        name = self.room.name
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
