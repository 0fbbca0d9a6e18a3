"""What one process shares with one server: its seats, and who holds or waits in it.

Configurations of one server share a `SharedClient`, whatever their namespaces: those are
only a prefix of the keys. A forked child starts with none: it
closes the sockets that it inherited, and holds none of its parent's
acquisitions.
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
from hashlib import sha1
from hmac import compare_digest
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from slotwise._core import fork
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import Unreachable, logger
from slotwise.redis._heartbeat_thread import HeartbeatThread
from slotwise.redis._keys import Keys, KeySet
from slotwise.redis._loop_client import LoopClient
from slotwise.redis._net.cluster import ClusterMap
from slotwise.redis._net.connection import pack_half
from slotwise.redis._net.handshake import Address
from slotwise.redis._release_batching import give
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition


class NameRecord:
    """What this process knows of one name: its keys and its value."""

    __slots__ = (
        "__weakref__",
        "_templates",
        "heard_at",
        "keys",
        "name",
        "value",
        "values",
    )

    beat = load("beat")  # the script that takes the heartbeats of this room

    def __init__(self, keys: KeySet) -> None:
        self.keys = keys
        self.name = keys.name
        self.value = 0  # the last that the server told; 0 before that
        self.values: frozenset[int] = frozenset()  # those that instances may be made with
        self.heard_at = -math.inf  # when the last heartbeat was sent that was answered
        self._templates: dict[tuple[str, float], tuple[bytes, bytes]] = {}

    async def give_all(
        self, process: SharedClient, seat: LoopClient, ids: list[str], interval: float
    ) -> None:
        """Have many acquisitions ended, in calls of bounded size."""
        await asyncio.gather(*(give(process, self, seat, each, interval) for each in ids))

    def learn(self, value: int, *declared: int) -> None:
        if value != self.value or not self.values.issuperset(declared):
            self.values = self.values | {value, *declared} if self.value else frozenset(declared)
            self.value = value

    def give_template(self, sha: bytes, seat: str, interval: float) -> tuple[bytes, bytes]:
        """A give.lua call as it travels, but for the id in its middle."""
        template = self._templates.get((seat, interval))
        if template is None:
            keys = self.keys.all
            first = pack_half((b"EVALSHA", sha, len(keys), *keys, b""))
            last = pack_half((seat, interval, self.keys.notification, b""))
            template = (b"*%d\r\n" % (3 + len(keys) + 6) + first, last)
            if len(self._templates) > 16:  # loops come and go
                self._templates.clear()
            self._templates[seat, interval] = template
        return template


class SharedClient:
    """The seats, holders and waiters of this process on one server."""

    # The tables are changed by single dict operations, from the threads of all
    # loops; the keeper goes over copies.
    #   P1  an acquisition is in waiters from before it is asked for until its wait has ended
    #   P2  it is in holders from when its grant was delivered until its release, loss or ttl

    def __init__(self, config: RedisConfig) -> None:
        self.config = config
        self.token = secrets.token_hex(6)
        # With this, in every claim, the scripts prove that a message is theirs (lua/proof.lua).
        secret = secrets.token_hex(8)
        self.who = f"!{secret} {socket.gethostname().replace(' ', '_') or '-'} {os.getpid()}"
        self._secret = secret.encode()
        self._warned_of_message = False
        self.next_number = itertools.count(1).__next__
        self.holders: dict[str, RedisAcquisition] = {}
        self.waiters: dict[str, RedisAcquisition] = {}
        # Lost or expired, with a task that is about to be cancelled for it.
        self.condemned: dict[str, RedisAcquisition] = {}
        self.cluster = ClusterMap(config) if config.endpoint.cluster else None
        self.keeper = HeartbeatThread(self)
        self._rooms: WeakValueDictionary[tuple[str, str], NameRecord] = WeakValueDictionary()
        self._seats: dict[asyncio.AbstractEventLoop, LoopClient] = {}
        self._seat_numbers = itertools.count()

    def room(self, namespace: str, name: str) -> NameRecord:
        with _lock:
            room = self._rooms.get((namespace, name))
            if room is None:
                keys = Keys(namespace, name, cluster=self.cluster is not None)
                room = self._rooms[namespace, name] = NameRecord(keys)
            return room

    def has(self, acquisition_id: str) -> bool:
        """Whether this process holds it, or waits for it."""
        return any(
            acquisition_id in each.holders or acquisition_id in each.waiters
            for each in self.siblings()
        )

    def siblings(self) -> list[SharedClient]:
        """Those of the same server, this one too: their configurations are not equally patient."""
        endpoint = self.config.endpoint
        return [each for each in list(_processes.values()) if each.config.endpoint == endpoint]

    # ----------------------------------------------------------------- seats

    def seat(self) -> LoopClient:
        """The seat of the running loop."""
        loop = asyncio.get_running_loop()
        self.keeper.attend()
        return self._seats.get(loop) or self._new_seat(loop)

    def _new_seat(self, loop: asyncio.AbstractEventLoop) -> LoopClient:
        self.leave_closed_loops()
        token = f"{self.token}x{next(self._seat_numbers)}"

        def listens() -> bool:
            return any(waiter.seat.token == token for waiter in list(self.waiters.values()))

        seat = LoopClient(
            self.config,
            loop,
            token,
            self.cluster,
            on_message=self.hear_published,
            on_reopened=self.keeper.beat_soon,
            on_silence=self.keeper.beat_soon,
            listens=listens,
        )
        with _lock:
            self._seats[loop] = seat
        return seat

    def leave_closed_loops(self) -> None:
        """Close what closed loops left open, and give back what was waited for there."""
        for loop, seat in list(self._seats.items()):
            if loop.is_closed() and self._seats.pop(loop, None) is not None:
                seat.abandon()
                for waiter in list(self.waiters.values()):
                    if waiter.seat is seat:
                        self.waiters.pop(waiter.acquisition_id, None)
                        self.keeper.give_later(waiter)

    def follow(self, primary: Address) -> None:
        """Leave every server but the one that the sentinels call primary; from any thread."""
        for loop, seat in list(self._seats.items()):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(seat.follow, primary)

    def server_answered(self, asked_at: float) -> None:
        """Have connections given up that were silent before, in the heartbeat thread."""
        for loop, seat in list(self._seats.items()):
            if seat.silent_at < asked_at:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(seat.doubt_if_silent, asked_at)

    # -------------------------------------------------------------- messages

    def hear_published(self, message: bytes) -> None:
        """Act on a message of the channel, if a script of ours proves that it wrote it.

        Anybody may publish anything. A message without a proof, as those of the documented
        scripts are, is only a hint that something became of a waiter: the server is asked.
        """
        body, _, proof = message.rpartition(b" ")
        proved = sha1(body + b" " + self._secret, usedforsecurity=False).hexdigest().encode()
        if compare_digest(proof, proved):
            self.hear(body)
            return
        word, _, acquisition_id = message.partition(b" ")
        if word != b"look" and not self._warned_of_message:
            self._warned_of_message = True
            logger.warning(
                "ignoring messages on the channels slotwise:* of %s that were not sent by our"
                " scripts, such as %.100r",
                self.config.endpoint,
                message,
            )
        self.hear(b"look " + acquisition_id.partition(b" ")[0])

    def hear(self, message: bytes) -> None:
        """Pass on what a script told a waiter or holder of ours, in whatever loop it is."""
        try:
            word, acquisition_id, *more = message.decode().split(" ")
        except ValueError:
            return
        if word == "kicked":
            holder = self.holders.get(acquisition_id)
            if holder is not None:
                self.keeper.lose(holder, "it was kicked")
                return
        waiter = self.waiters.get(acquisition_id)
        if waiter is None:
            # Delivered before, or given up: who gave it up also gives it back.
            return
        if word == "more":  # one call was not enough to serve all who fit
            self.keeper.watch(waiter.room, 0)
            return
        if word in ("gone", "kicked"):
            # In this thread, at once: its loop may be about to read a grant of before.
            waiter.doubtful = True
        try:
            if asyncio._get_running_loop() is waiter.seat.loop:
                waiter.hear(word, more)
            else:
                waiter.seat.loop.call_soon_threadsafe(waiter.hear, word, more)
        except RuntimeError:  # its loop is closed
            if self.waiters.pop(acquisition_id, None) is not None:
                self.keeper.give_later(waiter)

    # ---------------------------------------------------------------- losing

    def lose(self, holder: RedisAcquisition, reason: str, *, cancel: bool) -> None:
        """Tell a holder, from any thread, that it holds nothing any more."""
        acquisition_id = holder.acquisition_id
        if self.holders.pop(acquisition_id, None) is None:
            return
        holder.let_go()
        task = holder.task if cancel else None
        if task is not None:
            self.condemned[acquisition_id] = holder
        holder.lost.set(reason)
        if task is not None:
            loop = task.get_loop()

            def cancel_task() -> None:
                # Not there any more if it was released before the loop came to this.
                if self.condemned.pop(acquisition_id, None) is not None:
                    task.cancel(reason)

            try:
                loop.call_soon_threadsafe(cancel_task)
            except RuntimeError:  # the loop is closed, and the task with it
                self.condemned.pop(acquisition_id, None)

    # ---------------------------------------------------------------- resting

    def idle_since(self) -> float:
        """When the last call was made; inf while somebody holds or waits."""
        if self.holders or self.waiters:
            return math.inf
        return max((seat.used_at for seat in list(self._seats.values())), default=-math.inf)

    def hang_up(self) -> bool:
        """Have all connections closed that are not in use, in the keeper's thread; whether all are.

        That of a loop which does not run stays as it is, until that is closed.
        """
        here = asyncio.get_running_loop()
        connected = False
        for loop, seat in list(self._seats.items()):
            if loop is here:
                seat.hang_up()
            elif not loop.is_running():
                continue
            elif seat.is_connected and not seat.hanging_up:
                seat.hanging_up = True
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(seat.hang_up)
            connected = connected or seat.is_connected
        return not connected

    def leave_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget the seat of a loop that ends, and has hung up."""
        self._seats.pop(loop, None)

    # ---------------------------------------------------------------- ending

    def end(self) -> None:
        self.keeper.end()
        for loop, seat in list(self._seats.items()):
            if loop.is_running():
                error = Unreachable(f"the connection to {self.config.endpoint} was closed by us")
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(seat.end, error)
            else:
                seat.abandon()

    def abandon(self) -> None:
        """Close the inherited sockets in a forked child; the parent keeps its own."""
        for seat in self._seats.values():
            seat.abandon()
        self.keeper.abandon()


# ------------------------------------------------------------------ all of them

_lock = fork.new_lock()
_processes: dict[RedisConfig, SharedClient] = {}
# What the parent of a forked process held: not ours to release.
inherited: set[str] = set()


class Era:
    """The time between two forks; what was cached in an earlier one is void."""


era = Era()


def shared_client_for(config: RedisConfig) -> SharedClient:
    with _lock:
        shared = config.connection
        process = _processes.get(shared)
        if process is None:
            process = _processes[shared] = SharedClient(config)
        return process


def _after_fork_in_child() -> None:
    global _processes, era
    abandoned, _processes, era = _processes, {}, Era()
    for process in abandoned.values():
        inherited.update(process.holders)
        process.abandon()


def _at_exit() -> None:
    for process in list(_processes.values()):
        process.end()


atexit.register(_at_exit)
fork.in_child(fork.Step.FORGET, _after_fork_in_child)


def now() -> float:
    """The clock of this process; the server has its own."""
    return time.monotonic()
