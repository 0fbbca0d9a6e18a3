"""PrimaryWatch: notice that a Sentinel service has a new primary.

An old primary that was cut off or stopped continues to grant when it is back, until the
sentinels demote it, which takes them about 10 s. So its connections are closed as soon as a
sentinel names another primary. What a connection says after a silence isn't trusted before
the sentinels were asked (`Reconnector._verify`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from slotwise.errors import BackendError
from slotwise.redis._endpoint import Address
from slotwise.redis._net.call import Call
from slotwise.redis._net.connection import Connection
from slotwise.redis._net.handshake import Handshake, in_thread
from slotwise.redis._net.preparation import listen_to_sentinel, parse_primary, primary_command

if TYPE_CHECKING:
    from slotwise.redis._shared_client import SharedClient

# How often the sentinel is asked in addition: messages get lost, and connections die silently. More
# often while the primary doesn't answer: a sentinel knows the next one up to seconds before it
# announces it, which it does once all other replicas follow it.
_ASK_EVERY, _ASK_EVERY_IN_DOUBT = 2.0, 0.25
# The longest time it may take to reply, and the pause before another attempt.
_ANSWER = 1.0


class PrimaryWatch:
    """Follow the primary of one service. All methods are for the loop of the heartbeat thread."""

    def __init__(self, shared: SharedClient) -> None:
        self._shared = shared
        self._endpoint = shared.endpoint
        self._wanted = False
        self._opening = False  # or waiting to do so
        self._connection: Connection | None = None
        self._next: asyncio.TimerHandle | None = None  # when the sentinel is asked again

    def refresh(self, *, wanted: bool) -> None:
        """Start or stop watching."""
        if self._endpoint.service is None:
            return
        self._wanted = wanted
        if not wanted:
            self.close()
        elif self._connection is None and not self._opening:
            self._opening = True
            self._open(asyncio.get_running_loop())

    def ask_now(self) -> None:
        """Ask the sentinel at once: the primary doesn't answer."""
        if self._connection is not None:
            self._ask_sentinel(asyncio.get_running_loop(), self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close_sockets(self) -> None:
        """Close the socket only, in a forked child."""
        if self._connection is not None:
            self._connection.close_socket()

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self._shared.settings.config
        in_thread(
            *(self._endpoint, loop, "sentinel"),
            lambda: listen_to_sentinel(config),
            partial(self._opened, loop),
        )

    def _opened(
        self, loop: asyncio.AbstractEventLoop, result: tuple[Handshake, Address] | BackendError
    ) -> None:
        if not self._wanted:
            self._opening = False
        elif isinstance(result, BackendError):  # late replies are verified anyway
            loop.call_later(_ANSWER, self._open, loop)
        else:
            self._opening = False
            handshake, primary = result
            self._connection = Connection(
                *(handshake, loop, lambda: _ANSWER),
                lambda call, reply: call.on_done(call, reply),
                *(self._switched, self._lost),
            )
            self._shared.follow(primary)
            self._ask_sentinel(loop, self._connection)

    def _lost(self, connection: Connection, *_: object) -> None:
        if connection is self._connection:
            self._connection = None
            self._opening = True
            loop = asyncio.get_running_loop()
            loop.call_later(_ANSWER, self._open, loop)

    def _ask_sentinel(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        if self._next is not None:
            self._next.cancel()
        if connection is self._connection:
            connection.send(Call(None, (), primary_command(self._endpoint), self._asked))
            delay = _ASK_EVERY_IN_DOUBT if self._shared.is_in_doubt() else _ASK_EVERY
            self._next = loop.call_later(delay, self._ask_sentinel, loop, connection)

    def _asked(self, _: Call, reply: Any) -> None:
        primary = parse_primary(reply)
        if primary is not None:
            self._shared.follow(primary)

    def _switched(self, message: bytes) -> None:
        """Read a message: service, old host and port, new host and port."""
        service, *old_and_new = message.decode(errors="replace").split(" ")
        if service == self._endpoint.service and len(old_and_new) == 4:
            host, port = old_and_new[2:]
            if port.isdecimal():
                self._shared.follow((host, int(port)))
