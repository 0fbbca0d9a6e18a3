"""RedisAcquisition: one acquisition of this process, from its request to its end.

It is also what the caller gets. Everything here happens in the thread of the loop that
requested it. How it is written, and what replies mean, is in `_protocol`; `_batching` sends it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from slotwise._core import events
from slotwise._core.at_once import DONE
from slotwise._core.closing import Closure
from slotwise._core.control import WHOLE
from slotwise._core.limit import TIMEOUT_LIMIT
from slotwise._core.messages import no_slot, wait_failed
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.paths import Needs, Path, RankedNeeds, keys_by_name, pausing
from slotwise._core.results import AcquisitionResult
from slotwise.errors import AcquireTimeout, BackendError
from slotwise.redis import _log, _protocol
from slotwise.redis._batching import send_release, send_request
from slotwise.redis._diagnosis import (
    GARBAGE,
    ServerAway,
    Unreachable,
    may_pass,
    not_ours,
)
from slotwise.redis._net.call import Call, into
from slotwise.redis._writing import write_needs, write_path

if TYPE_CHECKING:
    from slotwise.redis._backend import RedisBackend
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._protocol import Released
    from slotwise.redis._shared_client import NameRecord, SharedClient


# A wait that is about to time out asks, this many seconds before its end, whether the server still
# answers: what is left after the end is too short to tell a distant server from a silent one.
_ASK_BEFORE = 0.5


class TimedOut(Exception):
    """Internal: the wait timed out; the reason is found out afterwards."""


class NotReached(AcquireTimeout, Unreachable):
    """The time was up, and the server had not answered.

    It is not known whether there was a slot, so it can be caught as either.
    """


# Those that are being settled, so that they are not garbage-collected meanwhile.
_settling: set[asyncio.Task[None]] = set()


def _finish_settling(future: asyncio.Future[None], task: asyncio.Task[None]) -> None:
    _settling.discard(task)
    if task.cancelled():
        future.cancel()
    else:
        into(future)(None, task.exception())


class RedisAcquisition(AcquisitionResult):
    """A request for slots, then a hold on them."""

    _scope = "redis"

    __slots__ = (
        "_asked_at",
        "_confirmation",
        "_deadline",
        "_ended",
        "_outcomes",
        "_settled",
        "_settling",
        "_timer",
        "_withdrawal",
        "alive_at",
        "call",
        "client",
        "expires_at",
        "future",
        "in_batch",
        "interval",
        "label",
        "limit",
        "needs",
        "path",
        "queued",
        "record",
        "replaces",
        "requested_at",
        "round_trip",
        "seen",
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
        path: Path,
        label: str,
        needs: Needs | None,
        timeout: float | None,
    ) -> None:
        shared, record = limit._attached()
        client = shared.client()
        self.limit = limit
        self.shared = shared
        self.record = record
        self.client = client
        # What is requested. One slot of each tier needs no word of it in the id.
        self.path = path
        self.needs = needs  # what it takes of each tier; None for one slot of each
        self.label = label
        self.timeout = timeout  # the longest wait
        self.ttl = limit._ttl
        self.interval = limit._interval
        self.replaces = isinstance(needs, RankedNeeds) and needs.replaces
        self.slots = needs[0] if needs is not None and record.is_semaphore else 1
        self.written_path = write_path(path)
        self.written_values = ""  # the values of keys that have their own, and weights
        written = "" if needs is None else write_needs(needs)
        super().__init__(f"sw-{client.token}-{shared.next_number()}{written}", 0)
        # When it was requested, and when the request was last sent: the server has had a sign
        # of life since then, if it has answered.
        self.requested_at = self.alive_at = time.monotonic()
        self.future: asyncio.Future[None] = client.loop.create_future()
        self.call: Call | None = None  # its request, once it is on its way
        self.in_batch = False  # whether that call carries requests of others too
        self.waits = timeout != 0
        # While it waits.
        self.queued = False
        self.round_trip = 0.0  # how long the reply took that queued it; 0 if it never was queued
        self.unconfirmed = False  # the server did not know it: what was granted before is void
        self._confirmation: Call | None = None
        self._deadline: asyncio.TimerHandle | None = None  # its end, or when it asks before that
        self._asked_at: float | None = None  # whether the server answers; without a reply so far
        self._timer: asyncio.TimerHandle | None = None  # set while it is the head, and lacks time
        self._withdrawal: asyncio.Future[Released] | None = None
        # While it holds.
        self.since = 0.0
        self.seen = False  # whether anybody has seen the grant
        self.expires_at = math.inf
        self.task: asyncio.Task[Any] | None = None
        # What was settled in this tick of its loop: sent at its end, or with the release.
        self._settled = ""
        self._settling: asyncio.Future[None] | None = None
        self._outcomes = None if limit._adaptive is None else Outcomes(limit._adaptive)
        self._ended = False

    def _keys(self) -> dict[str, str]:
        return keys_by_name(self.limit._specs, self.path)

    @property
    def heard_at(self) -> float:
        """When the last sign of life that the server answered was sent, for all slots."""
        return max(self.alive_at, self.record.heartbeat_at)

    # ------------------------------------------------------------ requesting

    def send_request(self, *, again: bool = False) -> None:
        """Send the request; its outcome arrives in `future`."""
        # Heartbeats keep it alive from before the server can know of it.
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
        return self.replaces or bool(self.label) or (overload is not None and overload.sheds)

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
            messages = _protocol.on_reply(self, reply)
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
            self.shared.heartbeat_thread.heartbeats.schedule_check(self.record, due_ms)

    # --------------------------------------------------------------- waiting

    async def wait(self, *, at_once: float | None = None) -> RedisAcquisition:
        """Wait until the request is granted, and return this, or clean up after it.

        A timeout of 0 waits only for the server's answer, which may take as long as it may after
        any other timeout, or ``at_once`` seconds.
        """
        timeout, limit = self.timeout, self.limit
        answer_limit = TIMEOUT_LIMIT if at_once is None else at_once
        if timeout is not None:
            self._set_deadline(timeout or answer_limit)
        # Closed by another thread, which may not have seen it among the waiters.
        if limit._generation.closed and self.close():
            self.send_withdrawal()
        try:
            await self.future
        except BaseException as error:
            try:
                await self._clean_up(error, at_once)
                raise
            except ServerAway:  # the limit's policy continues, with another acquisition
                await self.withdraw(0.0)  # it continues in the background
                _log.refused(self, BackendError(), waits=self.waits)
                raise
            except BaseException as outcome:
                _log.refused(self, outcome, waits=self.waits)
                raise
        finally:
            if self._deadline is not None:
                self._deadline.cancel()
        self.seen = True
        _log.acquired(self)
        return self

    def _set_deadline(self, seconds: float) -> None:
        """End the wait after that time, and find out before that whether the server is silent."""
        loop, lead = self.client.loop, min(_ASK_BEFORE, seconds / 2)

        def ask_server() -> None:
            self._deadline = loop.call_later(lead, self.end_wait, TimedOut())
            if self.queued:
                self._asked_at = time.monotonic()
                slot = self.record.keys.slot
                self.client.submit(Call(None, (), ["TIME"], answered, slot))

        def answered(_: Call, reply: Any) -> None:
            if not isinstance(reply, Unreachable):
                self._asked_at = None

        self._deadline = loop.call_later(seconds - lead, ask_server)

    def _silence(self) -> float:
        """Return for how long the server has been silent, if that is longer than usual."""
        if self._asked_at is None:
            return 0.0
        silence = time.monotonic() - self._asked_at
        return silence if silence >= 2 * self.round_trip else 0.0

    async def _clean_up(self, error: BaseException, at_once: float | None) -> None:
        """Withdraw the request whose wait ended with ``error``; raise the reason of a timeout."""
        if isinstance(error, TimedOut):
            assert self.timeout is not None
            await self._time_out(at_once or self.timeout)
        elif isinstance(error, BackendError):
            if may_pass(error) and self.call is not None and self.call.sent:
                self.send_withdrawal()  # the server may still grant it, to nobody
        elif isinstance(error, asyncio.CancelledError):
            future = self.future
            if future.done() and not future.cancelled():
                future.exception()  # retrieved: it came too late
            try:
                await self.withdraw(TIMEOUT_LIMIT)
            except Exception:  # noqa: S110 - silence frees what this could not
                pass
        elif isinstance(error, GeneratorExit):  # collected together with its event loop
            self.shared.forget_closed_loops()

    async def _time_out(self, waited: float) -> None:
        """Raise the reason of a timeout: full, or unreachable."""
        client, slot = self.client, self.record.keys.slot
        trouble, queued = client.trouble(slot), self.queued
        released = await self.withdraw(TIMEOUT_LIMIT if self.timeout else 0.0)
        waited = round(waited, 3) or waited  # what is left for one of several has many digits
        title, endpoint = self.limit._title, self.shared.endpoint
        if trouble is not None and not queued:
            if isinstance(trouble, Unreachable):
                raise wait_failed(NotReached, title, waited, str(trouble)) from trouble
            raise trouble
        if released is None and queued and trouble is None and not self._silence():
            # Only the answer to leaving the queue did not come in so short a time.
            share = f" for {self.slots} of {self.limit.value}" if self.record.is_semaphore else ""
            why = f"still queued{share} when {endpoint} last answered"
            raise no_slot(title, waited, why)
        if released is None or (released.held and not queued):
            silence = self._silence() if queued else waited  # perhaps an outage
            client.no_reply(silence, slot)
            raise wait_failed(NotReached, title, waited, f"{endpoint} did not answer")
        if released.held:
            raise no_slot(title, waited, "it came just too late")
        raise _protocol.timeout_error(self, waited, released.counts)

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
                self.send_request(again=True)
        elif word == "closed":
            self.fail(self.limit._closed_error(Closure(" ".join(more) if more else None)))
        elif word == "refused":
            self.fail(_protocol.never_fits(self.limit, self.path, self.needs, *map(int, more)))

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
            limit._idle.leave(self.path)
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
            self.shared.dispatch_all(outcomes, self.record, self.client)
            if self.queued:
                self.shared.heartbeat_thread.heartbeats.schedule_check(self.record, due_ms)

        beat = (self.record, self.interval, (), (self._acquisition_id,))
        keys, args = _protocol.heartbeat_call(self.shared, self.client.token, [beat])
        call = self._confirmation = Call(
            _protocol.HEARTBEAT, keys, args, answered, self.record.keys.slot
        )
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
        tiers = () if self.record.is_semaphore else self.limit._specs
        return asked_pauses(self._outcomes, tiers, self.path if tiers else ())

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
            self.limit._idle.leave(self.path)

    def fail(self, error: BaseException) -> None:
        self._mark_unqueued()
        self.shared.waiters.pop(self._acquisition_id, None)
        if not self.future.done():
            self.future.set_exception(error)
        self.mark_ended()

    def end_wait(self, why: Exception) -> None:
        """End the wait; the waiter then withdraws the request."""
        if not self.future.done():
            self.future.set_exception(why)

    # -------------------------------------------------------------- settling

    def settle(self, **costs: int) -> Awaitable[None]:
        limit = self.limit
        if self.record.is_semaphore:
            return super().settle(**costs)
        text = limit._write_costs(costs)
        if asyncio._get_running_loop() is None:
            limit.control_sync("settle", WHOLE, self._acquisition_id, costs)
            return DONE
        if self._settling is None:
            loop = asyncio.get_running_loop()
            self._settled, self._settling = "", loop.create_future()
            loop.call_soon(self._send_settled, self._settling)
        self._settled = ",".join(filter(None, (self._settled, text)))
        return self._settling

    def take_settled(self) -> str:
        """Take what was settled and not sent yet, to be sent with the release."""
        settling, self._settling = self._settling, None
        if settling is None:
            return ""
        into(settling)(None, None)
        return f" {self._settled}"

    def _send_settled(self, future: asyncio.Future[None]) -> None:
        if self._settling is future:  # it didn't go with the release
            self._settling = None
            control = self.limit._settle(self._acquisition_id, self._settled)
            task = asyncio.ensure_future(control)
            task.add_done_callback(partial(_finish_settling, future))
            _settling.add(task)

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
            tiers = pausing(self.limit._specs, self.path)
            sample += "p" + ".".join(str(tier) for tier, _ in tiers)
        return sample

    def unseen_item(self) -> str:
        """Return how its release names it: if nobody has seen a grant, rates get theirs back."""
        return "~" * bool(self.limit._rates and not self.seen) + self._acquisition_id

    def send_release(self, client: LoopClient, sample: str = "") -> asyncio.Future[Released]:
        """Release it, or remove it from the queue, over any connection; count who is there."""
        item = self.unseen_item() + sample
        return send_release(self.shared, self.record, client, item, count=True)

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
        """Continue a release in the background if the server is away, or refuses it for now.

        In the latter case only if it was queued: later it would be granted
        slots that nobody uses. Requests that were refused may be thousands a second.
        """
        error = None if released.cancelled() else released.exception()
        is_away = isinstance(error, Unreachable)
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
