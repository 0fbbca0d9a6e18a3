"""Notice that a server is away or back, for limits with a fallback.

A server is away at once when connections to it are refused or cut, and after a silence if it is
stuck. `_outages` knows which servers are; here a server's silence is noticed while nobody else
calls it, and waiters are told. What is done instead is in `_fallback`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from slotwise.redis import _outages
from slotwise.redis._diagnosis import Unreachable
from slotwise.redis._net.call import Call

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._loop_client import LoopClient

# Seconds between two attempts to find out whether a server is back.
_ASK_EVERY = 0.25
# How long it may take to read a reply that waits in the socket.
_LOOK_AGAIN = 0.02


class ServerAway(Exception):
    """Internal: the server is away, and the request no longer waits for it."""


def is_away(server: str, after: float) -> bool:
    """Whether a server is away for somebody who tolerates a silence of ``after`` seconds."""
    outage = _outages.ongoing.get(server)
    return outage is not None and (outage.broken or time.monotonic() - outage.since >= after)


class AwayWatch:
    """Watches a server for the waiters of one loop; all methods are for the loop."""

    def __init__(self, client: LoopClient, slot: int | None, after: float) -> None:
        self._client = client
        self._slot = slot
        self._after = after
        self._server = client.server(slot)
        # In the order of their requests, so that they continue in that order.
        self._waiting: dict[RedisAcquisition, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unconnected_since: float | None = None
        self._is_overdue = False  # whether it was silent for too long at the last check

    def add(self, acquisition: RedisAcquisition) -> None:
        self._waiting[acquisition] = None
        if self._timer is None:
            _outages.listeners.setdefault(self._server, set()).add(self._on_outage)
            self._tick()

    def remove(self, acquisition: RedisAcquisition) -> None:
        self._waiting.pop(acquisition, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = self._unconnected_since = None
            _outages.listeners.get(self._server, set()).discard(self._on_outage)

    def _on_outage(self) -> None:
        """Something is wrong with the server; called in any thread."""
        try:
            self._client.loop.call_soon_threadsafe(self._tell_if_away)
        except RuntimeError:  # the loop is closed
            _outages.listeners.get(self._server, set()).discard(self._on_outage)

    def _tell_if_away(self) -> None:
        if is_away(self._server, self._after):
            for acquisition in list(self._waiting):
                acquisition.leave_server(ServerAway())

    def _tick(self) -> None:
        now, client = time.monotonic(), self._client
        connection = client.connection_for(self._slot)
        if connection is None:  # it is being opened, or that has failed: then it is told
            self._unconnected_since = self._unconnected_since or now
            silence = now - self._unconnected_since
        else:
            self._unconnected_since = None
            silence = connection.silence()
            if not silence and not connection.has_pending(self._slot):
                client.submit(Call(None, (), ["TIME"], _ignore, self._slot))
        # Checked twice: a loop that was busy may not have read the answer yet.
        was_overdue, self._is_overdue = self._is_overdue, silence >= self._after
        if was_overdue and self._is_overdue:
            error = Unreachable(
                f"{client.endpoint} did not answer in {silence:.1f} s; is it overloaded or stopped?"
            )
            _outages.begin(self._server, error, broken=False, ago=silence)
        self._tell_if_away()
        pause = _LOOK_AGAIN if self._is_overdue else max(self._after / 4, _LOOK_AGAIN)
        self._timer = client.loop.call_later(pause, self._tick)


def ask_until_back(client: LoopClient, slot: int | None) -> None:
    """Ask a server that is away for its time, until it answers."""
    server = client.server(slot)
    if server in client.asking:
        return
    client.asking.add(server)
    is_asked = False

    def ask() -> None:
        nonlocal is_asked
        if server not in _outages.ongoing:
            client.asking.discard(server)
            return
        if not is_asked:
            is_asked = True
            client.submit(Call(None, (), ["TIME"], answered, slot))
        client.loop.call_later(_ASK_EVERY, ask)

    def answered(_: Call, __: Any) -> None:
        nonlocal is_asked
        is_asked = False

    ask()


def _ignore(_: Call, __: Any) -> None:
    """Ignore a reply: only the silence counts."""
