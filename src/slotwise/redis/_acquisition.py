"""RedisAcquisition: one acquisition of this process, from its request to its end.

It is also what the caller gets. Everything here happens in the thread of the loop that
requested it. The dialect of its limit knows what is requested and what replies mean.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from slotwise._core import events
from slotwise._core.closing import Closure
from slotwise._core.control import WHOLE
from slotwise._core.messages import unknown_acquisition
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.paths import keys_by_name, pausing
from slotwise._core.results import DONE, AcquisitionResult
from slotwise.errors import BackendError
from slotwise.redis import _log
from slotwise.redis._diagnosis import GARBAGE, ClosedByUs, Unreachable, may_pass, not_ours
from slotwise.redis._net.call import Call
from slotwise.redis._path_keys import write_needs
from slotwise.redis._release_batching import send_release
from slotwise.redis._request_batching import send_request
from slotwise.redis._wait_for_grant import TimedOut

if TYPE_CHECKING:
    from slotwise._core.paths import Needs, Path
    from slotwise.redis._backend import RedisBackend
    from slotwise.redis._dialect import Released
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord, SharedClient


class Settling:
    """What was settled in one tick of a loop: sent at its end, or with the release."""

    __slots__ = ("_acquisition", "_future", "_text")

    def __init__(self, acquisition: RedisAcquisition) -> None:
        self._acquisition = acquisition
        self._text = ""
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(self._flush)

    def add(self, text: str) -> Awaitable[None]:
        self._text = ",".join(filter(None, (self._text, text)))
        return self._future

    def take(self) -> str:
        """Take its text, which the caller sends."""
        text, self._text = self._text, ""
        if not self._future.done():
            self._future.set_result(None)
        return f" {text}" if text else ""

    def _flush(self) -> None:
        acquisition = self._acquisition
        if acquisition.settling is self:
            acquisition.settling = None
        if self._text:
            text, self._text = self._text, ""
            task = asyncio.ensure_future(self._send(text))
            task.add_done_callback(_settled.discard)
            _settled.add(task)

    async def _send(self, text: str) -> None:
        acquisition = self._acquisition
        limit: Any = acquisition.limit
        try:
            found = await limit._send_costs(acquisition._acquisition_id, text)
        except Exception as error:
            self._fail(error)
            return
        if not found:
            self._fail(unknown_acquisition(limit._title, acquisition._acquisition_id))
        elif not self._future.done():
            self._future.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # nobody has to await it


# Those under way, so that they are not garbage-collected meanwhile.
_settled: set[asyncio.Task[None]] = set()


class RedisAcquisition(AcquisitionResult):
    """A request for slots, then a hold on them."""

    _scope = "redis"

    __slots__ = (
        "_confirmation",
        "_ended",
        "_outcomes",
        "_timer",
        "_withdrawal",
        "alive_at",
        "call",
        "client",
        "expires_at",
        "future",
        "has_head_start",
        "in_batch",
        "interval",
        "label",
        "limit",
        "needs",
        "parts",
        "path",
        "queued",
        "record",
        "replaces",
        "requested_at",
        "round_trip",
        "seen",
        "settling",
        "shared",
        "since",
        "slots",
        "task",
        "timeout",
        "ttl",
        "unconfirmed",
        "waits",
        "written_path",
        "written_values",
    )

    shared: SharedClient
    record: NameRecord
    client: LoopClient

    def __init__(
        self,
        limit: RedisBackend,
        slots: int,
        label: str,
        path: Path = (),
        needs: Needs | None = None,
        head_start: int = 0,
    ) -> None:
        shared, record = limit._attached()
        client = shared.client()
        self.limit = limit
        self._outcomes = None if limit._adaptive is None else Outcomes(limit._adaptive)
        self.shared = shared
        self.record = record
        self.client = client
        self.slots = slots
        self.label = label
        self.path = path  # empty for a semaphore
        self.seen = False  # whether anybody has seen the grant
        self.settling: Settling | None = None  # what was settled in this tick
        self.needs = needs  # what a path takes of each tier; None for one slot of each
        self.written_path = ""  # in the form that the scripts have
        self.written_values = ""  # the values of keys that have their own, likewise
        self.ttl = limit._ttl
        self.interval = limit._interval
        self.expires_at = math.inf
        self.since = 0.0
        # When it was requested, and when the request was last sent: the server has had a sign
        # of life since then, if it has answered.
        self.requested_at = self.alive_at = time.monotonic()
        # For a holder whose heartbeats are sent in parts: each part, and when it was last renewed.
        self.parts: dict[str, float] | None = None
        self.round_trip = 0.0  # how long the reply took that queued it; 0 if it never was queued
        self.queued = False
        self.unconfirmed = False  # the server did not know it: what was granted before is void
        self.task: asyncio.Task[Any] | None = None
        self.timeout: float | None = None  # the longest wait
        self.replaces = False  # whether it replaces a holder instead of waiting
        self.future: asyncio.Future[None] = client.loop.create_future()
        count = f"*{slots}" if slots > 1 else "" if needs is None else write_needs(needs)
        self.has_head_start = bool(head_start)  # of a semaphore; those of tiers are in `needs`
        if head_start:  # as lua/semaphore/rules.lua reads it
            count = f"^{'n' if head_start < 0 else ''}{abs(head_start)}*{slots}"
        super().__init__(f"sw-{client.token}-{shared.next_number()}{count}", 0)
        self.call: Call | None = None  # its request, once it is on its way
        self.in_batch = False  # whether that call carries requests of others too
        self.waits = True
        self._confirmation: Call | None = None
        self._withdrawal: asyncio.Future[Released] | None = None
        self._ended = False
        # Set while it is the head and lacks only time.
        self._timer: asyncio.TimerHandle | None = None

    def _keys(self) -> dict[str, str]:
        limit: Any = self.limit
        return keys_by_name(limit._specs, self.path) if self.path else {}

    @property
    def ping_interval(self) -> float:
        return self.limit._ping_interval

    @property
    def heard_at(self) -> float:
        """When the last sign of life that the server answered was sent, for all slots."""
        if self.parts is not None:
            return min(self.parts.values())
        return max(self.alive_at, self.record.heartbeat_at)

    @property
    def cancel_after_ttl(self) -> bool:
        return self.limit._cancel_task_after_ttl

    @property
    def cancel_on_loss(self) -> bool:
        return self.limit._cancel_task_on_loss

    # ------------------------------------------------------------ requesting

    def send_request(self, *, wait: bool, again: bool = False) -> None:
        """Send the request; its outcome arrives in `future`."""
        # Heartbeats keep it alive from before the server can know of it.
        self.waits = wait
        self.alive_at = time.monotonic()
        self.shared.waiters[self._acquisition_id] = self
        heartbeat_thread, ping_interval = self.shared.heartbeat_thread, self.limit._ping_interval
        if ping_interval < heartbeat_thread.interval:
            heartbeat_thread.heartbeat_every(ping_interval)
        send_request(self, again=again)

    @property
    def has_own_word(self) -> bool:
        """Whether it waits under other conditions than most requests of its limit."""
        overload = self.limit._overload
        return self.replaces or (overload is not None and overload.sheds)

    @property
    def needs_heartbeat(self) -> bool:
        """Whether the server may know of this request, answered or not."""
        return self.queued or (self.call is not None and self.call.sent)

    def on_reply(self, call: Call, reply: Any) -> None:
        """Act on the reply to the request, unless another request was sent since."""
        if call is not self.call:
            return
        if isinstance(reply, BaseException):
            self.fail(reply)
            return
        try:
            messages = self.record.dialect.on_reply(self, reply)
        except GARBAGE as error:
            unreadable = not_ours(self.limit._title)
            unreadable.__cause__ = error
            self.fail(unreadable)  # whoever waits for it gives back what it may have been granted
            return
        if messages:
            self.shared.dispatch_all(messages, self.record, self.client)
        if self._withdrawal is not None and self._withdrawal.done():
            # The release overtook the request, which was refused at first because its script was
            # missing: the server has it only now.
            self.send_withdrawal()

    def on_queued(self, due_ms: int) -> None:
        """Wait: the next check is due in ``due_ms``."""
        # Noted even if it gave up before it read this: its release has to know.
        self.round_trip = time.monotonic() - self.alive_at
        if not self.future.done():
            self._mark_queued()
            self.shared.heartbeat_thread.checks.schedule(self.record, due_ms)

    def on_message(self, word: str, more: list[str]) -> None:
        """Act on a message of a script, or on what a heartbeat found."""
        if self.future.done():
            return
        if word == "granted":
            try:
                number, token = map(int, more)
            except ValueError:  # a damaged claim; the next heartbeat asks again
                return
            self.on_granted(number, token)
        elif word == "due":
            self._come_back(int(more[0]) / 1_000_000)
        elif word == "look":
            if self.queued:
                self.confirm()
        elif word == "gone":
            # The server forgot it, or thought it dead: to the end of the queue.
            if self.queued:
                self._mark_unqueued()
                self.send_request(wait=self.waits, again=True)
        elif word == "closed":
            self.fail(self.limit._closed_error(Closure(" ".join(more) if more else None)))
        elif word == "refused":
            self.fail(self.record.dialect.refused_error(self, *map(int, more)))

    def _come_back(self, seconds: float) -> None:
        """Have the server serve this one when it no longer lacks time: it is a first head.

        A timer of its own loop does that; if the loop is blocked then, some heartbeat thread.
        """
        self.record.attended_at = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.client.loop.call_later(seconds, self._serve)

    def _serve(self) -> None:
        self._timer = None
        if not self.future.done():
            self.shared.serve(self.record, self.client)

    def on_granted(self, number: int, token: int) -> None:
        """Hold the slots, unless that has to be confirmed first."""
        shared, limit, acquisition_id = self.shared, self.limit, self._acquisition_id
        is_over = self.future.done()
        self.since = since = time.monotonic()
        late = since - self.heard_at >= self.interval
        if (late or self.unconfirmed or self._confirmation is not None) and not is_over:
            # After such a long silence the server may have granted the slot to somebody else.
            self.confirm()
            return
        if not (is_over or limit._holds_nothing):  # before it stops to wait: no heartbeat misses it
            shared.holders[acquisition_id] = self
        shared.waiters.pop(acquisition_id, None)
        if limit._rates:
            self.record.attended_at = since
        self._waited = since - self.requested_at if self.queued else 0.0
        self._mark_unqueued()
        if is_over:
            return  # cancelled or timed out: the waiter releases it
        self._slot_number = number
        self._fencing_token = token
        if limit._holds_nothing:  # nothing is released, and nobody is told that it was
            self._ended = True
            limit._on_ended(self)
            self.future.set_result(None)
            return
        holding = self.client.holding.get(self.record)
        if holding is None:
            self.client.holding[self.record] = {acquisition_id}
        else:
            holding.add(acquisition_id)
        if self.ttl is not None:
            self.expires_at = since + self.ttl
            shared.heartbeat_thread.schedule_ttl(self.expires_at)
        self.future.set_result(None)

    def confirm(self) -> None:
        """Ask the server for the state of this request, and act on the answer.

        This is a heartbeat of its own: what it finds granted is renewed.
        """
        if self._confirmation is not None:
            return  # the answer is on its way
        self.unconfirmed = False  # unless another message asks for it
        sent_at = time.monotonic()

        def answered(_: Call, reply: Any) -> None:
            self._confirmation = None
            if self.future.done():
                return
            if isinstance(reply, BaseException):
                self.fail(reply)
                return
            [[due_ms, *outcomes]] = reply
            self.alive_at = sent_at
            self._mark_queued()  # unless the answer says otherwise
            for outcome in outcomes:
                self.shared.dispatch(outcome)
            if self.queued:
                self.shared.heartbeat_thread.checks.schedule(self.record, due_ms)

        keys = self.record.keys
        args = [b"", self.client.token, self.interval, keys.notification]
        args += [0, 1, self._acquisition_id]
        script = self.record.dialect.heartbeat
        limits = self.limit._limits
        call = self._confirmation = Call(script, keys.all, args, answered, keys.slot, limits)
        call.patient = self.waits
        self.client.submit(call)

    def _mark_queued(self) -> None:
        if not self.queued:
            self.queued = True
            self.client.queued_by_name[self.record] += 1

    def _mark_unqueued(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.queued:
            self.queued = False
            queued_by_name = self.client.queued_by_name
            queued_by_name[self.record] -= 1
            if queued_by_name[self.record] <= 0:
                del queued_by_name[self.record]

    def pauses(self) -> Sequence[events.Pause]:
        """Return what its service has asked to pause, for events."""
        limit: Any = self.limit
        return asked_pauses(self._outcomes, limit._specs if self.path else (), self.path)

    def mark_ended(self) -> None:
        """Note, in any thread, that it no longer holds or waits."""
        holding = self.client.holding.get(self.record)
        if holding is not None:
            holding.discard(self._acquisition_id)
            if not holding:
                self.client.holding.pop(self.record, None)
        if not self._ended:
            self._ended = True
            if events.hooks:
                _log.ended(self, "released")  # unless something else was reported before
            self.limit._on_ended(self)

    def fail(self, error: BaseException) -> None:
        self._mark_unqueued()
        self.shared.waiters.pop(self._acquisition_id, None)
        if not self.future.done():
            self.future.set_exception(error)
        self.mark_ended()

    def leave_server(self, why: Exception) -> None:
        """Fail because the server is away; the waiter withdraws the request."""
        if not self.future.done():
            self.future.set_exception(why)

    def time_out(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimedOut())

    # -------------------------------------------------------------- settling

    def settle(self, **costs: int) -> Awaitable[None]:
        limit: Any = self.limit
        if not self.path:
            return super().settle(**costs)
        text = limit._write_costs(costs)
        if asyncio._get_running_loop() is None:
            limit.control_sync("settle", WHOLE, self._acquisition_id, costs)
            return DONE
        if self.settling is None:
            self.settling = Settling(self)
        return self.settling.add(text)

    def take_settled(self) -> str:
        """Take what was settled and not sent yet, to be sent with the release."""
        settling, self.settling = self.settling, None
        return "" if settling is None else settling.take()

    # ------------------------------------------------------------- releasing

    def sample(self) -> str:
        """Return how its work ended, to be sent with the release, if a value adapts."""
        outcomes = self._outcomes
        if outcomes is None:
            return ""
        sample = f" {outcomes.outcome[0]}{int((time.monotonic() - self.since) * 1_000_000)}"
        if outcomes.retry_after:
            sample += f" {int(outcomes.retry_after * 1_000_000)}"
        if outcomes.pauses_for:  # with the numbers of the tiers that are paused
            limit: Any = self.limit
            tiers = pausing(limit._specs, self.path) if self.path else []
            sample += "p" + ".".join(str(tier) for tier, _ in tiers)
        return sample

    def send_release(self, client: LoopClient, sample: str = "") -> asyncio.Future[Released]:
        """Release it, or remove it from the queue, over any connection; count who is there."""
        # If nobody has seen a grant, what was taken of rates goes back.
        unseen = "~" if self.limit._rates and not self.seen else ""
        return send_release(
            *(self.shared, self.record, client, unseen + self._acquisition_id + sample),
            *(self.interval, self.limit._limits),
            count=True,
        )

    async def withdraw(self, seconds: float) -> Released | None:
        """End a wait whose outcome nobody will see: leave the queue, or pass the grant on.

        Returns None if the server never had the request, or didn't answer within ``seconds``, or
        if this is cancelled: then the release continues in the background, and at the latest
        silence frees the slots.
        """
        shared, call = self.shared, self.call
        shared.waiters.pop(self._acquisition_id, None)
        shared.holders.pop(self._acquisition_id, None)
        self.mark_ended()
        self._mark_unqueued()
        if self._confirmation is not None:
            self._confirmation.patient = False
        if call is not None:
            call.patient = False
            if not self.in_batch and self.client.withdraw(call):
                return None
        released = self.send_withdrawal()
        if seconds > 0:
            # A scope of anyio cancels again in every tick: waiting on would keep the loop busy.
            await asyncio.wait([released], timeout=seconds)
        return released.result() if released.done() else None

    def send_withdrawal(self) -> asyncio.Future[Released]:
        """Release what nobody will use, granted or only requested, in its loop's thread.

        Over the connection that has the request: over another one it could overtake it.
        """
        self._withdrawal = self.send_release(self.client)
        self._withdrawal.add_done_callback(self._on_withdrawn)
        return self._withdrawal

    def _on_withdrawn(self, released: asyncio.Future[Any]) -> None:
        """Continue a release in the background if the server is away, or a key is damaged.

        In the latter case only if it was queued: when the key is repaired, it would be granted
        slots that nobody uses. Requests that were refused may be thousands a second.
        """
        error = None if released.cancelled() else released.exception()
        is_away = isinstance(error, Unreachable) and not isinstance(error, ClosedByUs)
        if is_away or (self.round_trip and may_pass(error)):
            self.shared.heartbeat_thread.finish_release(self.send_release, self.interval)

    def close(self) -> bool:
        """Fail because its instance was closed, in its loop's thread.

        Returns whether the server may know it: then it has to be released.
        """
        if self.future.done():
            return False  # granted before, or timed out: the waiter cleans up
        self.fail(self.limit._closed_error(None))
        for call in (self.call, self._confirmation):
            if call is not None:
                call.patient = False
        if self.call is None:  # it is still waiting to be sent with others
            return False
        return self.in_batch or not self.client.withdraw(self.call)

    async def release_quietly(self, sample: str = "") -> None:
        """Release it for somebody who can't; if that fails, silence frees the slots."""
        self.mark_ended()
        try:
            await self.send_release(self.shared.client(), sample)
        except BackendError:
            pass
