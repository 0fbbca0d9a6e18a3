"""LoopClient: the connections of one event loop to one server.

A plain server needs one connection; a cluster one for each node that is called. `_shared_client`
knows which waiter a message is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.limit import EXIT_LIMIT
from slotwise.errors import BackendError
from slotwise.redis import _outages
from slotwise.redis._diagnosis import Unreachable
from slotwise.redis._endpoint import Address
from slotwise.redis._net.call import Backlog, Call, fail_future, into
from slotwise.redis._net.connection import Connection
from slotwise.redis._net.reconnector import Reconnector
from slotwise.redis._scripts import Script

if TYPE_CHECKING:
    from slotwise.redis._fallback import AwayWatch
    from slotwise.redis._shared_client import SharedClient

T = TypeVar("T")

# How long a look-up or a change waits for its reply, in seconds. What is promised to callers
# is 2 s, so that it holds on a busy machine.
_LOOK = 1.9

# The shortest silence that counts as an outage: a caller with a short timeout proves nothing.
_OUTAGE = EXIT_LIMIT

# The least time that a reply has once the event loop runs again: the loop may have been blocked
# before the call was sent, or with the reply waiting in the socket. So a timer fires this long
# before the deadline, or after half of the time if that is shorter, to see that the loop runs.
_GRACE = 0.25

# A connection on which messages are awaited is tested after this long without a call, so that a
# dead one is noticed within a second. With heartbeats, a waiting process sends fewer than three
# commands per second; the heartbeats of more than `_MANY` waiters take several of them.
_PAUSE, _PAUSE_OF_MANY, _MANY = 0.34, 1.2, 2_000


def look_limit(at_most: float | None) -> float:
    """Return how long to wait for a look-up, for a caller who has ``at_most`` seconds."""
    return _LOOK if at_most is None else min(at_most, _LOOK)


class LoopClient:
    """One loop's calls and messages. All methods are for the loop's own thread."""

    def __init__(self, shared: SharedClient, loop: asyncio.AbstractEventLoop, token: str) -> None:
        self.shared = shared
        self.settings = shared.settings
        self.endpoint = shared.endpoint
        self.loop = loop
        self.token = token
        self._reconnectors: dict[Address | None, Reconnector] = {}
        self._cluster = cluster = shared.cluster
        # How many waiters this loop has, by name record; see `_batching`.
        self.queued_by_name: Counter[Any] = Counter()
        # The ids that hold slots here, by name record: a hint, for the same.
        self.holding: dict[Any, set[str]] = {}
        # Requests that wait a moment to be sent with others, by name record.
        self.pending_requests: dict[Any, list[Any]] = {}
        # Releases that wait for the end of this tick; see `_batching`.
        self.pending_releases: dict[Any, list[tuple[str, asyncio.Future[Any]]]] = {}
        # Names for which a call is under way that serves waiters; see `continue_serving`.
        self.serving: set[Any] = set()
        # For limits that do something else while the server is away; see `_fallback`.
        self.watches: dict[tuple[int | None, float], AwayWatch] = {}
        self.closing_idle = False  # whether its loop was asked to close them
        self._learning = False
        # Calls whose slot no known node serves, until the map of the cluster is read again.
        self._unrouted = Backlog(self.settings)
        # By hash slot: calls that were refused while it changes hands, and those made since,
        # which must not pass them.
        self._held_back: dict[int | None, list[Call]] = {}
        self._next_number = itertools.count(1).__next__
        self._only = self.reconnector_to(None) if cluster is None else None

    def submit(self, call: Call) -> None:
        if self._only is not None:
            self._only.submit(call)
            return
        call.number = call.number or self._next_number()
        if call.slot in self._held_back:
            self._held_back[call.slot].append(call)
        else:
            self._send(call)

    def _send(self, call: Call) -> None:
        assert self._cluster is not None
        address = self._cluster.address_of(call.slot or 0)
        if address is None:
            self._unrouted.add(call)
            self._learn()
        else:
            self.reconnector_to(address).submit(call)

    def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: list[Any],
        slot: int | None,
    ) -> asyncio.Future[Any]:
        """Submit a call; the future has its reply. To stop waiting doesn't stop the call."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self.submit(Call(script, keys, args, into(future), slot))
        return future

    async def command(self, *words: object, address: Address | None = None) -> Any:
        """Submit a plain command, to one node if this is a cluster."""
        reply: asyncio.Future[Any] = self.loop.create_future()
        self.reconnector_to(address).submit(Call(None, (), list(words), into(reply)))
        return await self.reply_within(_LOOK, reply, None)

    def connection_for(self, slot: int | None) -> Connection | None:
        """Return the open connection that a call would use, if there is one."""
        reconnector = self._reconnector_of(slot)
        return None if reconnector is None else reconnector.connection

    def _reconnector_of(self, slot: int | None) -> Reconnector | None:
        if self._only is not None:
            return self._only
        assert self._cluster is not None
        address = self._cluster.address_of(slot or 0)
        return None if address is None else self._reconnectors.get(address)

    def silence(self, slot: int | None) -> float:
        """Return for how many seconds replies have been due on the connection that a call uses."""
        connection = self.connection_for(slot)
        return 0.0 if connection is None else connection.silence()

    def drop_connection(self, slot: int | None) -> None:
        """Give up the connection that a call uses; calls without a reply are sent over another."""
        connection = self.connection_for(slot)
        if connection is not None:
            connection.lose(TimeoutError())

    @property
    def is_in_doubt(self) -> bool:
        """Whether replies are missed, or a connection is being opened. From any thread."""
        if self._only is None:
            return False
        connection = self._only.connection
        return self._only.is_connected if connection is None else connection.silent_at < math.inf

    def note_alive(self, address: Address | None, asked_at: float) -> None:
        """Note, in any thread, that a server has answered, so that a dead connection is given up.

        It was asked at ``asked_at``, over another connection.
        """
        reconnector = self._reconnectors.get(address)
        connection = None if reconnector is None else reconnector.connection
        if connection is not None:
            if asked_at > connection.alive_at:
                connection.answered_in = time.monotonic() - asked_at
                connection.alive_at = asked_at
            if connection.silent_at < math.inf:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(connection.doubt_if_silent)

    def withdraw(self, call: Call) -> bool:
        """Take back a call; False if the server may have seen it, or will."""
        held_back = self._held_back.get(call.slot, [])
        if not call.sent and call in held_back:
            held_back.remove(call)
            return True
        return self._unrouted.withdraw(call) or any(
            reconnector.withdraw(call) for reconnector in self._reconnectors.values()
        )

    def trouble(self, slot: int | None) -> BackendError | None:
        """Return why calls do not get through at the moment; None if they do."""
        reconnector = self._reconnector_of(slot)
        if reconnector is None or reconnector.connection is not None:
            return None
        return reconnector.trouble

    def is_answering(self, slot: int | None) -> bool:
        """Whether the server still replies, even if only to other calls, and late."""
        connection = self.connection_for(slot)
        return connection is not None and connection.is_answering

    def server(self, slot: int | None) -> str:
        """Return the name in messages of the server that a call goes to."""
        address = None if self._cluster is None else self._cluster.address_of(slot or 0)
        return self.endpoint.server(address)

    # --------------------------------------------------------------- waiting

    async def reply_within(self, seconds: float, reply: asyncio.Future[T], slot: int | None) -> T:
        """Wait for a reply, for at most ``seconds``; a caller that leaves doesn't stop its call.

        Raises:
            Unreachable: it did not come in time. The call may still be carried out.
            BackendError: the server can't be used.
        """
        grace = min(_GRACE, seconds / 2)
        timer: asyncio.TimerHandle

        def look_again() -> None:
            nonlocal timer
            timer = self.loop.call_later(grace, stop_waiting)

        def stop_waiting() -> None:
            if not reply.done():
                fail_future(reply, self.no_reply(seconds, slot))

        timer = self.loop.call_later(seconds - grace, look_again)
        try:
            return await reply
        finally:
            timer.cancel()

    def no_reply(self, seconds: float, slot: int | None) -> BackendError:
        """Return the error of a caller that got no reply for that long.

        It is noted as an outage if it was long enough and others got no reply either: a call behind
        10,000 others on a busy server waits long, too.
        """
        error = self.trouble(slot) or Unreachable(
            f"{self.endpoint} did not answer in {seconds:g} s; is it overloaded or stopped?"
        )
        is_outage = seconds >= _OUTAGE and isinstance(error, Unreachable)
        if is_outage and not self.is_answering(slot):
            _outages.begin(self.server(slot), error, broken=False, ago=seconds)
        return error

    # ----------------------------------------------------------- connections

    def reconnector_to(self, address: Address | None) -> Reconnector:
        reconnector = self._reconnectors.get(address)
        if reconnector is None:
            reconnector = self._reconnectors[address] = Reconnector(self, address)
        return reconnector

    def listens(self, address: Address | None) -> bool:
        """Whether somebody waits for a message of that server."""
        serves = self._cluster is None or address in self._cluster.primaries()
        return serves and any(
            waiter.client is self for waiter in list(self.shared.waiters.values())
        )

    def idle_pause(self) -> float | None:
        """Return how long to wait before testing an idle connection; None: don't test it."""
        if not (self.queued_by_name or self.holding):
            return None
        return _PAUSE if sum(self.queued_by_name.values()) <= _MANY else _PAUSE_OF_MANY

    def follow(self, primary: Address) -> None:
        """Leave a server that is not the primary any more."""
        if self._only is not None:
            self._only.follow(primary)

    # --------------------------------------------------------------- cluster

    async def primaries(self) -> list[Address | None]:
        """Return every node that has keys; [None] for a plain server."""
        if self._cluster is None:
            return [None]
        if not self._cluster.primaries():
            learned: asyncio.Future[Any] = self.loop.create_future()
            self._cluster.learn(self.loop, lambda error: into(learned)(None, error))
            await self.reply_within(_LOOK, learned, None)
        return [*self._cluster.primaries()]

    def on_moved(self, call: Call, text: str, more_to_come: bool) -> bool:
        """Send a call where the server says that its slot is."""
        if self._cluster is None:
            return False
        call.tries += 1
        if call.tries > self.settings.config.attempts + 3:
            return False
        only_once, slot, address = self._cluster.parse_redirection(text)
        if not only_once and not more_to_come:
            # Not before: newer calls that went there directly would pass the redirected ones.
            self._cluster.note(slot, address)
        if call.slot in self._held_back:
            self._held_back[call.slot].append(call)
            return True
        reconnector = self.reconnector_to(address)
        if only_once:
            reconnector.submit(Call(None, (), ["ASKING"], lambda *_: None))
        reconnector.submit(call)
        return True

    def hold_back(self, call: Call, delay: float) -> None:
        """Make a call again in a moment; until then, no other call of its slot may pass it."""
        if call.slot not in self._held_back:
            self._held_back[call.slot] = []
            self.loop.call_later(delay, self._resume, call.slot, delay)
        self._held_back[call.slot].append(call)

    def _resume(self, slot: int | None, delay: float) -> None:
        if any(reconnector.has_pending(slot) for reconnector in self._reconnectors.values()):
            # Calls still in flight will be refused too, and have to keep their places.
            self.loop.call_later(delay, self._resume, slot, delay)
            return
        for call in sorted(self._held_back.pop(slot, ()), key=lambda each: each.number):
            self._send(call)

    def on_trouble(self) -> None:
        """A node can't be reached: perhaps another has taken its slots over."""
        if self._cluster is not None:
            self._learn()

    def _learn(self) -> None:
        assert self._cluster is not None
        if not self._learning:
            self._learning = True
            self._cluster.learn(self.loop, self._learned)

    def _learned(self, error: BackendError | None) -> None:
        assert self._cluster is not None
        self.closing_idle = False  # whether its loop was asked to close them
        self._learning = False
        backlogs = [
            reconnector.backlog.take()
            for reconnector in self._reconnectors.values()
            if reconnector.connection is None
        ]
        for call in itertools.chain(*backlogs):
            self._unrouted.add(call)
        if error is not None:
            self._unrouted.fail_attempt(error)
        for call in self._unrouted.take():
            if self._cluster.address_of(call.slot or 0) is None:
                self._unrouted.add(call)
            else:
                self.submit(call)
        if self._unrouted:
            self.loop.call_later(self.settings.config.max_backoff / 2, self._learn)

    # ---------------------------------------------------------------- ending

    @property
    def used_at(self) -> float:
        """When the last call was made; may be asked in any thread, as the next one."""
        return max(
            (reconnector.used_at for reconnector in list(self._reconnectors.values())),
            default=-math.inf,
        )

    @property
    def is_connected(self) -> bool:
        return any(reconnector.is_connected for reconnector in list(self._reconnectors.values()))

    def close_idle(self) -> None:
        """Close the connections that nothing is under way on; the next call opens others."""
        self.closing_idle = False
        for reconnector in self._reconnectors.values():
            reconnector.close_if_idle()

    def end(self) -> None:
        """Close all connections for good; pending calls fail."""
        error = Unreachable(f"the connection to {self.endpoint} was closed by us")
        for reconnector in self._reconnectors.values():
            reconnector.end(error)
        for call in (*self._unrouted.take(), *itertools.chain(*self._held_back.values())):
            call.on_done(call, error)

    def close_sockets(self) -> None:
        """Close the sockets only, from any thread."""
        for reconnector in list(self._reconnectors.values()):
            reconnector.close_socket()
