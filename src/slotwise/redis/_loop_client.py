"""Seat: the place of one event loop in the fleet. Its calls go out here, its messages come in.

A plain server needs one line; a cluster one for each node that is talked to.
Which waiter a message is for is the process's business.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from slotwise.errors import BackendError
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import Unreachable
from slotwise.redis._net.cluster import ClusterMap, parse_redirection
from slotwise.redis._net.connection import Call, Connection, IntoFuture
from slotwise.redis._net.handshake import Address
from slotwise.redis._net.reconnector import Reconnector
from slotwise.redis._reply_limits import LOOK, reply_within
from slotwise.redis._scripts import Script


class LoopClient:
    """One loop's calls and messages. All methods are for the loop's own thread."""

    def __init__(
        self,
        config: RedisConfig,
        loop: asyncio.AbstractEventLoop,
        token: str,
        cluster: ClusterMap | None,
        *,
        on_message: Callable[[bytes], object],
        on_reopened: Callable[[], object],
        on_silence: Callable[[], object],
        listens: Callable[[], bool],
    ) -> None:
        self.config = config
        self.loop = loop
        self.token = token
        self._on_message = on_message
        self._on_reopened = on_reopened
        self._on_silence = on_silence
        self._listens = listens
        self._lines: dict[Address | None, Reconnector] = {}
        self._cluster = cluster
        # How many stand in line from here, by room; see `RedisAcquisition.ask`.
        self.in_line: Counter[Any] = Counter()
        # Who was granted slots here and has not ended, by room: a hint, see there too.
        self.holding: dict[Any, set[str]] = {}
        # Requests that wait a moment for company; see `RedisAcquisition.ask`.
        self.lingering: dict[Any, list[Any]] = {}
        # Releases that wait for the end of this tick; see `giving`.
        self.batches: dict[Any, list[tuple[str, asyncio.Future[Any]]]] = {}
        self.hanging_up = False  # whether its loop was asked to do that
        self._learning = False
        self._parked: list[Call] = []  # until it is known who serves their slots
        # By hash slot: calls that were refused while it changes hands, and those made since,
        # which must not pass them.
        self._unsettled: dict[int | None, list[Call]] = {}
        self._next_number = itertools.count(1).__next__
        self._blocking: Reconnector | None = None
        self._only = self.line_to(None) if cluster is None else None

    def submit(self, call: Call) -> None:
        if self._only is not None:
            self._only.submit(call)
            return
        call.number = call.number or self._next_number()
        if call.slot in self._unsettled:
            self._unsettled[call.slot].append(call)
        else:
            self._send(call)

    def _send(self, call: Call) -> None:
        assert self._cluster is not None
        address = self._cluster.address_of(call.slot or 0)
        if address is None:
            self._parked.append(call)
            self._learn()
        else:
            self.line_to(address).submit(call)

    def run(
        self, script: Script, keys: Sequence[bytes], args: list[Any], slot: int | None
    ) -> asyncio.Future[Any]:
        """Submit a call whose reply is awaited. Who stops waiting does not stop the call."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self.submit(Call(script, keys, args, IntoFuture(future), slot))
        return future

    async def command(self, *words: object, address: Address | None = None) -> Any:
        """A plain command, to one node if this is a cluster."""
        return await reply_within(LOOK, self.line_to(address).command(*words), self, None)

    def link_for(self, slot: int | None) -> Connection | None:
        """The open connection that a call would travel by, if there is one."""
        if self._only is not None:
            return self._only.link
        assert self._cluster is not None
        address = self._cluster.address_of(slot or 0)
        line = None if address is None else self._lines.get(address)
        return None if line is None else line.link

    def doubt(self, slot: int | None) -> None:
        """Give up the connection that a call travels by; what it owes is asked over a new one."""
        link = self.link_for(slot)
        if link is not None:
            link.lose(TimeoutError())

    @property
    def silent_at(self) -> float:
        """When replies were missed, if none came since; else inf. From any thread."""
        link = None if self._only is None else self._only.link
        return math.inf if link is None else link.silent_at

    def doubt_if_silent(self, alive_at: float) -> None:
        """Give up a connection that is dead, if the server has answered over another one."""
        if self._only is not None and self._only.link is not None:
            self._only.link.doubt_if_silent(alive_at)

    def withdraw(self, call: Call) -> bool:
        """Take back a call; False if the server may have seen it, or will."""
        for calls in (self._parked, self._unsettled.get(call.slot, [])):
            if not call.sent and call in calls:
                calls.remove(call)
                return True
        return any(line.withdraw(call) for line in self._lines.values())

    def trouble(self, slot: int | None) -> BackendError | None:
        """Why calls do not get through at the moment; None if they do."""
        if self._only is not None:
            line: Reconnector | None = self._only
        else:
            assert self._cluster is not None
            line = self._lines.get(self._cluster.address_of(slot or 0))
        return None if line is None or line.link is not None else line.trouble

    def server(self, slot: int | None) -> str:
        """The server that a call goes to, as messages name it."""
        address = None if self._cluster is None else self._cluster.address_of(slot or 0)
        return self.config.endpoint.server(address)

    # ----------------------------------------------------------------- lines

    def line_to(self, address: Address | None) -> Reconnector:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = Reconnector(
                self.config,
                self.loop,
                address,
                f"slotwise:{self.token}",
                on_message=self._on_message,
                on_open=self._opened,
                on_moved=self._moved,
                on_unsettled=self._wait_until_settled,
                on_trouble=self._troubled,
                # The nodes of a cluster tell nothing about each other.
                on_silence=self._on_silence if self._cluster is None else None,
                listens=lambda: self._listens() and self._serves(address),
            )
        return line

    def blocking_line(self) -> Reconnector:
        """A line of its own to the one server, for calls that would hold others up."""
        if self._blocking is None:
            self._blocking = Reconnector(
                self.config,
                self.loop,
                None,
                None,
                on_message=_ignore,
                on_open=_ignore,
                on_moved=lambda *_: False,
                on_unsettled=_ignore,
                on_trouble=_ignore,
                listens=lambda: False,
            )
        return self._blocking

    def close_blocking_line(self) -> None:
        if self._blocking is not None:
            self._blocking.end(Unreachable("the blocking connection was closed by us"))
            self._blocking = None

    def _serves(self, address: Address | None) -> bool:
        return self._cluster is None or address in self._cluster.primaries()

    def _opened(self, again: bool) -> None:
        if again:
            self._on_reopened()

    def follow(self, primary: Address) -> None:
        """Leave a server that is not the primary any more."""
        for line in (self._only, self._blocking):
            if line is not None:
                line.follow(primary)

    # --------------------------------------------------------------- cluster

    async def primaries(self) -> list[Address | None]:
        """Every node that has keys; [None] for a plain server."""
        if self._cluster is None:
            return [None]
        if not self._cluster.primaries():
            learned: asyncio.Future[Any] = self.loop.create_future()
            self._cluster.learn(self.loop, lambda error: IntoFuture(learned)(None, error))
            await reply_within(LOOK, learned, self, None)
        return [*self._cluster.primaries()]

    def _moved(self, call: Call, text: str, more_to_come: bool) -> bool:
        """Send a call where the server says that its slot is."""
        if self._cluster is None:
            return False
        call.tries += 1
        if call.tries > self.config.attempts + 3:
            return False
        only_once, slot, address = parse_redirection(text)
        if not only_once and not more_to_come:
            # Not before: whoever went there directly would pass those that are sent on.
            self._cluster.note(slot, address)
        if call.slot in self._unsettled:
            self._unsettled[call.slot].append(call)
            return True
        line = self.line_to(address)
        if only_once:
            line.submit(Call(None, (), ["ASKING"], lambda *_: None))
        line.submit(call)
        return True

    def _wait_until_settled(self, call: Call, delay: float) -> None:
        """Make a call again in a moment, and let none of its slot pass it until then."""
        if call.slot not in self._unsettled:
            self._unsettled[call.slot] = []
            self.loop.call_later(delay, self._settled, call.slot, delay)
        self._unsettled[call.slot].append(call)

    def _settled(self, slot: int | None, delay: float) -> None:
        if any(line.owes(slot) for line in self._lines.values()):
            # What is still under way will be refused, and belongs in between.
            self.loop.call_later(delay, self._settled, slot, delay)
            return
        for call in sorted(self._unsettled.pop(slot, ()), key=lambda each: each.number):
            self._send(call)

    def _troubled(self) -> None:
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
        self.hanging_up = False  # whether its loop was asked to do that
        self._learning = False
        parked, self._parked = self._parked, []
        for line in self._lines.values():
            if line.link is None:
                parked += line.take_backlog()
        for call in parked:
            if error is not None:
                call.tries += 1
            if error is not None and call.tries >= self.config.attempts and not call.patient:
                call.on_done(call, error)
            elif self._cluster.address_of(call.slot or 0) is None:
                self._parked.append(call)
            else:
                self.submit(call)
        if self._parked:
            self.loop.call_later(self.config.max_backoff / 2, self._learn)

    # ---------------------------------------------------------------- ending

    @property
    def used_at(self) -> float:
        """When the last call was made; may be asked in any thread, as the next one."""
        return max((line.used_at for line in list(self._lines.values())), default=-math.inf)

    @property
    def is_connected(self) -> bool:
        return any(line.is_connected for line in list(self._lines.values()))

    def hang_up(self) -> None:
        """Close the connections that nothing is under way on; the next call opens others."""
        self.hanging_up = False
        for line in self._lines.values():
            line.hang_up()

    def end(self, error: BackendError) -> None:
        self.close_blocking_line()
        for line in self._lines.values():
            line.end(error)
        left = [*self._parked, *itertools.chain(*self._unsettled.values())]
        self._parked.clear()
        self._unsettled.clear()
        for call in left:
            call.on_done(call, error)

    def abandon(self) -> None:
        """Close the sockets only, from any thread."""
        for line in list(self._lines.values()):
            line.abandon()
        if self._blocking is not None:
            self._blocking.abandon()


def _ignore(*_: object) -> None:
    """Nobody wants to know."""
