"""SharedClient: what a process has on one server: connections, holders, and waiters to be woken.

A message of the server, on any connection, is dispatched here to the waiter it is for.
Configurations of one server share a `SharedClient`, whatever their namespaces, which are only
a prefix of the keys, and their limits (`ServerSettings`). A forked child starts with
none: it closes the sockets that it inherited, and holds none of its parent's acquisitions.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Hashable, Sequence
from hashlib import sha1
from hmac import compare_digest
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from slotwise._core import fork
from slotwise._core.closing import Generations
from slotwise._core.limit import require_asyncio
from slotwise._core.messages import KICKED, cancelled_after_ttl, ttl_ended
from slotwise._wait.ttl_cancel import TtlCancels
from slotwise.errors import BackendError
from slotwise.redis import _log, _protocol
from slotwise.redis._batching import release_all
from slotwise.redis._config import RedisConfig, ServerSettings
from slotwise.redis._diagnosis import logger
from slotwise.redis._endpoint import Address, Endpoint
from slotwise.redis._heartbeat_thread import HeartbeatThread
from slotwise.redis._heartbeats import COST_PER_CALL
from slotwise.redis._keys import KeySet, names_key
from slotwise.redis._loop_client import LoopClient
from slotwise.redis._net.call import Call
from slotwise.redis._net.cluster import ClusterMap

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition

# What a script appends to its reply when one call was not enough to serve everyone who fits.
UNFINISHED = b"unfinished"

# Of each server, namespace, kind (a semaphore or tiers) and name: what was not closed here. The
# fleet is not told: closing a name for everybody is done by the scripts (lua/control.lua).
generations = Generations()


class NameRecord:
    """What this process knows of one name: its kind, its keys and its value."""

    __slots__ = (
        "__weakref__",
        "adapting",
        "attended_at",
        "has_rates",
        "heartbeat_at",
        "is_semaphore",
        "keys",
        "local_limits",
        "name",
        "namespace",
        "pattern",
        "value",
        "values",
    )

    def __init__(self, kind: str, namespace: str, keys: KeySet) -> None:
        self.is_semaphore = kind == "semaphore"
        self.namespace = namespace
        self.keys = keys
        self.name = keys.name
        # The lists by which clients that speak only the document are told of grants.
        self.pattern = keys.notification if self.is_semaphore else b""
        self.value = 0  # the last that the server told; 0 before that
        # What instances may be made with: values, or the rules of one that adapts.
        self.values: frozenset[str] = frozenset()
        self.adapting: Callable[[], Any] = lambda: None  # an object of this name that adapts
        self.heartbeat_at = -math.inf  # when the last heartbeat was sent that was answered
        self.has_rates = False
        # If it has rates: when the server last served everybody, and told a waiter here of it.
        self.attended_at = -math.inf
        self.local_limits: dict[str, Any] = {}  # while the server is away; see `_fallback`

    def learn(self, value: int, *declared: str) -> None:
        """Note the value that the server told, and what instances may be made with."""
        if value != self.value or not self.values.issuperset(declared):
            if self.value and declared[0].isdigit():
                self.values = self.values | {str(value), *declared}
            else:
                self.values = frozenset(declared)
            self.value = value


class SharedClient:
    """The loop clients, holders and waiters of this process on one server."""

    # The tables are changed by single dict operations, from the threads of all
    # loops; the heartbeat thread iterates over copies.
    #   P1  an acquisition is in waiters from before it is asked for until its wait has ended
    #   P2  it is in holders from when its grant was delivered until its release, loss or ttl

    def __init__(self, config: RedisConfig) -> None:
        self.settings = ServerSettings(config)
        self.endpoint = config.endpoint
        self.token = secrets.token_hex(6)
        # With this, in every claim, scripts prove that a message is theirs.
        secret = secrets.token_hex(8)
        self.owner = f"!{secret} {socket.gethostname().replace(' ', '_') or '-'} {os.getpid()}"
        self._secret = secret.encode()
        self._warned_of_message = False
        self.next_number = itertools.count(1).__next__
        self.holders: dict[str, RedisAcquisition] = {}
        self.waiters: dict[str, RedisAcquisition] = {}
        self.ttl_cancels = TtlCancels()
        self.cluster = ClusterMap(self.settings) if config.endpoint.cluster else None
        self.stalled = (-math.inf, -math.inf)  # when the heartbeat thread last did not run
        self.heartbeat_thread = HeartbeatThread(self)
        self._records: WeakValueDictionary[tuple[str, str, str], NameRecord] = WeakValueDictionary()
        self._clients: dict[asyncio.AbstractEventLoop, LoopClient] = {}
        self._client_numbers = itertools.count()

    def record(self, kind: str, namespace: str, name: str) -> NameRecord:
        """What this process knows of a name; the same for all objects of that name."""
        with _lock:
            record = self._records.get((kind, namespace, name))
            if record is None:
                keys = KeySet(namespace, kind, name, cluster=self.cluster is not None)
                record = NameRecord(kind, namespace, keys)
                self._records[kind, namespace, name] = record
            return record

    def names_key(self, record: NameRecord) -> bytes:
        """Where the server notes that a name is used: by that `_survey` finds it."""
        slot = record.keys.slot or 0
        if self.cluster is None:
            return names_key(record.namespace, None)
        shard = self.cluster.shard_of(slot)
        return names_key(record.namespace, slot if shard is None else shard)

    def has(self, acquisition_id: str) -> bool:
        """Whether this process holds it, or waits for it."""
        return acquisition_id in self.holders or acquisition_id in self.waiters

    # ---------------------------------------------------------- loop clients

    def client(self) -> LoopClient:
        """The client of the running loop."""
        loop = asyncio._get_running_loop() or require_asyncio()
        self.heartbeat_thread.ensure_running()
        return self._clients.get(loop) or self._new_client(loop)

    def _new_client(self, loop: asyncio.AbstractEventLoop) -> LoopClient:
        self.forget_closed_loops()
        token = f"{self.token}x{next(self._client_numbers)}"

        client = LoopClient(self, loop, token)
        with _lock:
            self._clients[loop] = client
        return client

    def forget_closed_loops(self) -> None:
        """Close what closed loops left open, and release what was waited for there."""
        for loop, client in list(self._clients.items()):
            if loop.is_closed() and self._clients.pop(loop, None) is not None:
                client.close_sockets()
                for waiter in list(self.waiters.values()):
                    if waiter.client is client:
                        self.waiters.pop(waiter.acquisition_id, None)
                        self.heartbeat_thread.release_later(waiter)

    def follow(self, primary: Address) -> None:
        """Leave every server but the one that the sentinels call primary; from any thread."""
        for loop, client in list(self._clients.items()):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(client.follow, primary)

    def is_in_doubt(self) -> bool:
        """Whether a loop gets no replies, or has no connection that it needs; from any thread."""
        return any(client.is_in_doubt for client in list(self._clients.values()))

    def server_answered(self, asked_at: float, address: Address | None = None) -> None:
        """Note that the server has answered a call of ``asked_at``, in the heartbeat thread.

        Connections that have been silent since before are given up. On a cluster, the node at
        ``address`` has answered.
        """
        for client in list(self._clients.values()):
            client.note_alive(address, asked_at)

    def on_reopened(self, client: LoopClient, address: Address | None) -> None:
        """Ask the server for the state of all acquisitions: messages may be missing.

        For waiters of this loop, ask over the connection that was just opened, before anything
        else is sent there: the heartbeat thread's own may be dead, which isn't known yet.
        """
        self.heartbeat_thread.heartbeat_soon()
        waiting: dict[tuple[NameRecord, float], list[str]] = {}
        for waiter in list(self.waiters.values()):
            if waiter.client is client and waiter.queued:
                key = waiter.record, waiter.interval
                waiting.setdefault(key, []).append(waiter.acquisition_id)
        for (record, interval), ids in waiting.items():
            cluster, slot = self.cluster, record.keys.slot or 0
            if cluster is None or cluster.address_of(slot) == address:
                for first in range(0, len(ids), COST_PER_CALL):
                    asked = ids[first : first + COST_PER_CALL]
                    self.serve(record, client, interval, asked)

    # -------------------------------------------------------------- messages

    def dispatch_published(self, message: bytes) -> None:
        """Act on a message of the channel, if a script of ours proves that it wrote it.

        Anybody may publish anything. A message without a proof, such as one of the documented
        scripts, is only a hint that the state of a waiter has changed: the server is asked.
        """
        body, _, proof = message.rpartition(b" ")
        proved = sha1(body + b" " + self._secret, usedforsecurity=False).hexdigest().encode()
        if compare_digest(proof, proved):
            self.dispatch(body)
            return
        word, _, acquisition_id = message.partition(b" ")
        if word != b"look" and not self._warned_of_message:
            self._warned_of_message = True
            logger.warning(
                "ignoring messages on the channels slotwise:* of %s that were not sent by our"
                " scripts, such as %.100r",
                self.endpoint,
                message,
            )
        self.dispatch(b"look " + acquisition_id.partition(b" ")[0])

    def dispatch_all(self, messages: list[bytes], record: NameRecord, client: LoopClient) -> None:
        """Pass on the messages that follow the reply to a call of ``client`` for ``record``."""
        for message in messages:
            if message == UNFINISHED:
                self.continue_serving(record, client)
            elif message.startswith(b"adapted "):
                if (limit := record.adapting()) is not None:
                    limit._on_adapted(message)
            elif message.startswith(b"reset "):
                _log.reset(record, message.removeprefix(b"reset "))
            elif message.startswith(b"lost "):
                self._on_lost(message.removeprefix(b"lost "))
            else:
                self.dispatch(message)

    def continue_serving(self, record: NameRecord, client: LoopClient) -> None:
        """Have the server serve the waiters that one call was not enough for.

        One call at a time: it is executed after everything that was sent before it, and says
        whether another is needed.
        """
        if record not in client.serving:
            client.serving.add(record)
            self.serve(record, client)

    def serve(
        self,
        record: NameRecord,
        client: LoopClient,
        interval: float = 0,
        waiters: Sequence[str] = (),
    ) -> None:
        """Have the server serve the waiters that it can serve by now, and tell of some of ours."""

        def answered(_: Call, reply: Any) -> None:
            client.serving.discard(record)
            if isinstance(reply, BaseException):
                return  # the waiters check again, and heartbeats ask
            [[due_ms, *messages]] = reply
            self.dispatch_all(messages, record, client)
            if waiters:
                self.heartbeat_thread.heartbeats.schedule_check(record, due_ms)
            elif due_ms == 0:
                self.continue_serving(record, client)

        beats = [(record, interval, (), waiters)]
        keys, args = _protocol.heartbeat_call(self, client.token, beats)
        client.submit(Call(_protocol.HEARTBEAT, keys, args, answered, record.keys.slot))

    def dispatch(self, message: bytes) -> None:
        """Pass on what a script told a waiter or holder of this process, in any loop."""
        try:
            word, acquisition_id, *more = message.decode().split(" ")
        except ValueError:
            return
        if word == "kicked":
            holder = self.holders.get(acquisition_id)
            if holder is not None:
                if more == ["later"]:  # it keeps its slots for its grace, or until its release
                    holder._state_outcome("ignored")
                    holder.lost.set(KICKED)
                    _log.ended(holder, "kicked")
                else:
                    self.lose(holder, KICKED)
                return
        waiter = self.waiters.get(acquisition_id)
        if waiter is None:
            # Delivered before, or withdrawn: then the waiter releases it.
            return
        if word in ("gone", "kicked"):
            # In this thread, at once: its loop may be about to read an earlier grant.
            waiter.unconfirmed = True
        try:
            if asyncio._get_running_loop() is waiter.client.loop:
                waiter.on_message(word, more)
            else:
                waiter.client.loop.call_soon_threadsafe(waiter.on_message, word, more)
        except RuntimeError:  # its loop is closed
            if self.waiters.pop(acquisition_id, None) is not None:
                self.heartbeat_thread.release_later(waiter)

    # ---------------------------------------------------------------- losing

    def expire(self, now: float) -> float:
        """End the holds whose ttl is over; return when the next ttl ends."""
        soonest = math.inf
        for holder in list(self.holders.values()):
            if holder.expires_at <= now:
                holder._state_outcome("dropped")
                sample = holder.sample()
                self._expire(holder)
                self.heartbeat_thread.spawn(holder.release_quietly(sample))
            else:
                soonest = min(soonest, holder.expires_at)
        return soonest

    def lose_silent(self, now: float) -> float:
        """Mark holders as lost that the server must consider dead: no heartbeat got through.

        The time is counted from the last sign of life, which may have been sent during the wait;
        a grant is none. Return when the next holder is lost if no heartbeat gets through.
        """
        soonest = math.inf
        for holder in list(self.holders.values()):
            heard_at = holder.heard_at
            if now - heard_at >= holder.interval:
                self.lose(holder, self._why_silent(heard_at, now))
                self.heartbeat_thread.spawn(holder.release_quietly())
            else:
                soonest = min(soonest, heard_at + holder.interval)
        return soonest

    def _on_lost(self, reply: bytes) -> None:
        """Act on what a heartbeat was told: the server doesn't know this id as a holder."""
        holder = self.holders.get(reply.decode())
        if holder is None:
            return
        # On the server the ttl began a little earlier than here.
        ttl = holder.ttl
        if ttl is not None and time.monotonic() > holder.expires_at - max(0.1, ttl / 10):
            self._expire(holder)
        else:
            self.lose(holder, "the server does not know it any more, or it was kicked")

    def lose(self, holder: RedisAcquisition, why: str) -> None:
        """Tell a holder, from any thread, that the server has ended its hold."""
        holder._state_outcome("ignored")
        _log.lost(holder, "kicked" if why == KICKED else "lost", why)
        message = f"{holder.acquisition_id} was lost: {why}"
        self._tell_lost(holder, why, message if holder.limit._cancel_task_on_loss else None)

    def _expire(self, holder: RedisAcquisition) -> None:
        _log.lost(holder, "expired", ttl_ended(holder.ttl))
        message = cancelled_after_ttl(holder.acquisition_id, holder.ttl)
        cancel_message = message if holder.limit._cancel_task_after_ttl else None
        self._tell_lost(holder, ttl_ended(holder.ttl), cancel_message)

    def _why_silent(self, since: float, now: float) -> str:
        why = f"no heartbeat got through for {now - since:.1f} s"
        from_, to = self.stalled
        stall = to - max(from_, since)
        if stall > (now - since) / 2:
            why += (
                f": the heartbeat thread did not run for {stall:.1f} s of that (the process was"
                " stopped or short of CPU time, or a hook or finalizer blocked the thread)"
            )
        return why

    def _tell_lost(self, holder: RedisAcquisition, reason: str, cancel_message: str | None) -> None:
        """Tell a holder, from any thread, that it holds nothing any more.

        With a ``cancel_message`` its task is cancelled.
        """
        acquisition_id = holder.acquisition_id
        if self.holders.pop(acquisition_id, None) is None:
            return
        holder.mark_ended()
        sent = None
        if cancel_message is not None and holder.task is not None:
            sent = self.ttl_cancels.announce(
                acquisition_id, holder.task, cancel_message, owner=holder.record
            )
        holder.lost.set(reason)
        if sent is not None:
            sent.send()

    # --------------------------------------------------------------- closing

    async def close_name(self, record: NameRecord, key: Hashable, at_most: float) -> None:
        """Close all instances of a name that this process made so far.

        Returns when their waiters have left the queue, or after ``at_most`` seconds; then
        that continues in the background.
        """

        def those_in(claims: dict[str, RedisAcquisition]) -> list[RedisAcquisition]:
            return [
                each for each in list(claims.values()) if each.record.keys.all == record.keys.all
            ]

        # Waiters first: one that is granted meanwhile is among the holders before it leaves them.
        everybody = [*those_in(self.waiters), *those_in(self.holders)]
        generations.close(key, [each.acquisition_id for each in everybody])
        # Holders stay: a loop that has only holders may be blocked, and need not be waited for.
        by_client: dict[LoopClient, list[RedisAcquisition]] = {}
        for waiter in those_in(self.waiters):
            if waiter.limit._generation.closed:
                by_client.setdefault(waiter.client, []).append(waiter)
        failing: list[asyncio.Future[None]] = []
        for client, waiters in by_client.items():
            if not client.loop.is_closed():
                there = asyncio.run_coroutine_threadsafe(_fail(client, waiters), client.loop)
                failing.append(asyncio.wrap_future(there))
        if failing:
            await asyncio.wait(failing, timeout=at_most)
        if not self.has_open_instances():
            self.heartbeat_thread.stop_when_idle()

    def has_open_instances(self) -> bool:
        """Whether this process has instances on the server that it has not closed."""
        return any(
            isinstance(key, tuple) and key[0] == self.endpoint for key in generations.open_names()
        )

    # -------------------------------------------------------------- idleness

    def idle_since(self) -> float:
        """When the last call was made; inf while somebody holds or waits."""
        if self.holders or self.waiters:
            return math.inf
        return max((client.used_at for client in list(self._clients.values())), default=-math.inf)

    def close_idle(self) -> bool:
        """Close all connections that are not in use; return whether all are closed.

        In the heartbeat thread. The connection of a loop that doesn't run stays until that is
        closed.
        """
        here = asyncio.get_running_loop()
        connected = False
        for loop, client in list(self._clients.items()):
            if loop is here:
                client.close_idle()
            elif not loop.is_running():
                continue
            elif client.is_connected and not client.closing_idle:
                client.closing_idle = True
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(client.close_idle)
            connected = connected or client.is_connected
        return not connected

    def forget_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget the client of a loop that ends, and has closed its connections."""
        self._clients.pop(loop, None)

    # ---------------------------------------------------------------- ending

    def end(self) -> None:
        self.heartbeat_thread.end()
        for loop, client in list(self._clients.items()):
            if loop.is_running():
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(client.end)
            else:
                client.close_sockets()

    def close_sockets(self) -> None:
        """Close the inherited sockets in a forked child; the parent keeps its own."""
        for client in self._clients.values():
            client.close_sockets()
        self.heartbeat_thread.close_sockets()


async def _fail(client: LoopClient, waiters: list[RedisAcquisition]) -> None:
    """Fail waiters, in the thread of their loop, and remove them from the queue."""
    known = [waiter for waiter in waiters if waiter.close()]  # to the server, perhaps
    with contextlib.suppress(BackendError):  # silence frees them then
        await release_all(known, client)


# ------------------------------------------------------------------ all of them

_lock = fork.new_lock()
_shared_clients: dict[Endpoint, SharedClient] = {}
# What the parent of a forked process holds: not ours to release.
inherited: set[str] = set()


# The time between two forks: what was cached in an earlier one is invalid.
fork_epoch = object()


def shared_client_for(config: RedisConfig) -> SharedClient:
    """Return this process's client for the server, patient enough for ``config`` from now on."""
    with _lock:
        shared = _shared_clients.get(config.endpoint)
        if shared is None:
            shared = _shared_clients[config.endpoint] = SharedClient(config)
        shared.settings.include(config)
        return shared


def has_issued(acquisition_id: str) -> bool:
    """Whether this process made an id, for whatever server."""
    return any(
        acquisition_id.startswith(f"sw-{shared.token}x")
        for shared in list(_shared_clients.values())
    )


def _after_fork_in_child() -> None:
    global _shared_clients, fork_epoch
    inherited_clients, _shared_clients, fork_epoch = _shared_clients, {}, object()
    for shared in inherited_clients.values():
        inherited.update(shared.holders)
        shared.close_sockets()


def _at_exit() -> None:
    for shared in list(_shared_clients.values()):
        shared.end()


atexit.register(_at_exit)
fork.in_child(fork.Step.FORGET, _after_fork_in_child)
