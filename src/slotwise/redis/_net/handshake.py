"""Handshake: the first commands on a fresh socket: greeting, user, database, and queries.

Plain blocking code, run in a short-lived thread, so that every way it can fail is handled in one
place. Afterwards a `Connection` takes the socket over.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from hiredis import pack_command

from slotwise.errors import BackendError
from slotwise.redis import _diagnosis
from slotwise.redis._config import RedisConfig
from slotwise.redis._endpoint import CLIENT_NAME, Address, Endpoint, show_address
from slotwise.redis._net.opening import get_credentials, open_socket
from slotwise.redis._scripts import Script

_OLDEST = (6, 2)


class GreetingRefused(hiredis.ReplyError):
    """An error reply in a conversation that began with a password."""

    may_repeat_password = True


class Handshake:
    """A blocking conversation over a fresh socket.

    Its socket is closed with it, unless a `Connection` has taken it over: the event loop that
    was to do so may be closed in the meantime, and then drops its callbacks.

    If the greeting contains a password (``is_secret``), replies are not quoted in messages.
    """

    def __init__(
        self,
        sock: socket.socket,
        deadline: float,
        endpoint: Endpoint,
        address: Address,
        *,
        is_secret: bool,
    ) -> None:
        self.sock = sock
        self._taken = False
        self._is_secret = is_secret
        self.reader = hiredis.Reader()
        self._deadline = deadline
        self._endpoint = endpoint
        self.address = address
        self.missing_scripts: list[Script] = []  # scripts of ours that the server doesn't have
        self._received = b""  # the beginning of the last reply, for a message about it

    def take_socket(self) -> socket.socket:
        """Return the socket to the caller, who closes it from now on."""
        self._taken = True
        return self.sock

    def __del__(self) -> None:
        if not self._taken:
            self.sock.close()

    def allow(self, seconds: float) -> None:
        """Set the deadline for all replies together to ``seconds`` from now."""
        self._deadline = time.monotonic() + seconds

    def ask(self, *words: Any) -> Any:
        """Send one command and return its reply; errors are returned, not raised."""
        self.send([words])
        return self.reply()

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send commands in one write: their replies cost one round trip together."""
        self.sock.sendall(b"".join(pack_command(tuple(words)) for words in commands))

    def reply(self) -> Any:
        """Return the next reply, and skip messages before it.

        Nothing is lost: once the connection is in use, waiters ask what was granted meanwhile.
        """
        while (reply := self._parse()) is False or _is_message(reply):
            if reply is not False:
                continue
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._received = data[:100]
            self.reader.feed(data)
        if self._is_secret and isinstance(reply, hiredis.ReplyError):
            return GreetingRefused(str(reply))
        return reply

    def _parse(self) -> Any:
        try:
            return self.reader.gets()
        except hiredis.ProtocolError:
            raise self.misunderstood() from None

    def quoted(self, words: object) -> str:
        """Return what the server said, in a form that messages may quote."""
        return _diagnosis.said_by(self._endpoint, words)

    def misunderstood(self) -> BackendError:
        """Return the error for a reply, the last one, that Redis would never send."""
        answer = None if self._is_secret else self._received
        return _diagnosis.not_redis(self._endpoint, show_address(self.address), answer)


def _is_message(reply: Any) -> bool:
    return isinstance(reply, hiredis.PushNotification) and reply[0] == b"message"


def greet(
    config: RedisConfig,
    address: Address,
    questions: Sequence[Sequence[Any]] = (),
    on_socket: Callable[[socket.socket], object] | None = None,
) -> Handshake:
    """Open a connection to ``address`` and greet; the caller reads the replies to ``questions``.

    These are sent together with the greeting, so that all of it takes one round trip.

    Raises:
        OSError: the server can't be reached or used (BackendError included).
        hiredis.ReplyError: it refused the user or the database.
    """
    endpoint, options = config.endpoint, config.endpoint.options
    credentials = get_credentials(endpoint, options)
    deadline = time.monotonic() + config.connect_timeout
    sock = open_socket(endpoint, options, address, config.connect_timeout)
    is_secret = credentials is not None
    handshake = Handshake(sock, deadline, endpoint, address, is_secret=is_secret)
    try:
        if on_socket is not None:
            on_socket(sock)
        hello = ["HELLO", "3"]
        if credentials is not None:
            hello += ["AUTH", *credentials]
        hello += ["SETNAME", options.kwargs.get("client_name") or CLIENT_NAME]
        select = [["SELECT", endpoint.database]] if endpoint.database else []
        handshake.send([hello, *select, *questions])
        _check_version(handshake, endpoint)
        if select:
            selected = handshake.reply()
            if isinstance(selected, hiredis.ReplyError):
                raise selected
    except BaseException:
        sock.close()
        raise
    return handshake


def _check_version(handshake: Handshake, endpoint: Endpoint) -> None:
    """Read the reply to the greeting, and refuse servers that are too old."""
    reply = handshake.reply()
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    try:
        version = reply[b"version"].decode()
        number = tuple(int(part) for part in version.split(".")[:2])
    except (LookupError, TypeError, AttributeError, ValueError):
        raise handshake.misunderstood() from None
    if number < _OLDEST:
        raise _diagnosis.too_old(endpoint, version)
