"""Call: one command to a server, and what to do with its reply.

`connection` sends calls, a `Backlog` keeps those that wait for a connection, and `reconnector`
repeats those that got no reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hiredis import pack_command

from slotwise.errors import BackendError
from slotwise.redis._config import ServerSettings
from slotwise.redis._scripts import Script


class Call:
    """One command, and what to do with its reply.

    ``on_done`` is called exactly once, in the loop's thread, with the call and its reply; the
    reply is an exception if the call failed.
    """

    __slots__ = (
        "again_at",
        "alone",
        "args",
        "doubtful",
        "eager",
        "keys",
        "number",
        "on_done",
        "packed",
        "patient",
        "reloaded",
        "script",
        "sent",
        "sha_only",
        "slot",
        "tries",
        "waits_since",
        "whole",
    )

    def __init__(
        self,
        script: Script | None,
        keys: Sequence[bytes],
        args: list[Any] | Callable[[], list[Any]],
        on_done: Callable[[Call, Any], object],
        slot: int | None = None,
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args  # or what makes them, for a call that is packed beforehand
        self.on_done = on_done
        self.slot = slot
        self.waits_since = 0.0  # when it was sent
        self.number = 0  # its position among the calls of a loop, on a cluster
        self.sent = False  # the server may have received it
        self.doubtful = False  # sent, and the connection broke before a reply: it may have run
        self.reloaded = False  # the script was missing once, and was loaded
        self.whole = False  # send the script itself, not its SHA
        self.sha_only = False  # this user may not send scripts
        self.tries = 0  # attempts since the server was last reached
        self.patient = False  # it is retried until its caller withdraws it
        self.packed: bytes | None = None  # what to send the first time, if packed beforehand
        self.alone = False  # its caller makes no other call in this tick
        self.eager = False  # its caller awaits nothing else: worth polling for the reply
        self.again_at: int | None = None  # the index of the argument that marks a repetition

    def pack(self) -> bytes:
        if self.packed is not None and not self.sent:
            return self.packed
        script, args = self.script, self.args
        if callable(args):
            args = self.args = args()
        if self.sent and self.again_at is not None:
            args[self.again_at] = b"again"
        if script is None:
            packed: bytes = pack_command((*self.keys, *args))
        elif self.whole:
            packed = pack_command((b"EVAL", script.source, len(self.keys), *self.keys, *args))
        else:
            packed = pack_command((b"EVALSHA", script.sha, len(self.keys), *self.keys, *args))
        return packed


def fail_future(future: asyncio.Future[Any], error: BaseException) -> None:
    """Fail a future unless it is done; asyncio doesn't complain if nobody awaits it any more."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def into(future: asyncio.Future[Any]) -> Callable[[Call | None, Any], None]:
    """Return an ``on_done`` that sets the result of a future to the reply, unless it is done."""

    def on_done(_: Call | None, reply: Any) -> None:
        if isinstance(reply, BaseException):
            fail_future(future, reply)
        elif not future.done():
            future.set_result(reply)

    return on_done


def pack_half(words: Sequence[Any]) -> bytes:
    """Return part of a command in RESP; the caller prepends the number of all its words."""
    packed: bytes = pack_command(tuple(words))
    return packed[packed.index(b"\r\n") + 2 :]


class Backlog:
    """Calls in the order in which they were made, in the thread of their event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._calls: dict[Call, None] = {}  # in order, and any can be withdrawn at once

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def is_exhausted(self, call: Call, more: int = 0) -> bool:
        """Whether a call has failed ``attempts`` + ``more`` times."""
        return not call.patient and call.tries >= self._settings.config.attempts + more

    def add(self, call: Call) -> None:
        self._calls[call] = None

    def put_first(self, calls: list[Call]) -> None:
        """Add calls that were made before all others, including exhausted ones."""
        self._calls = dict.fromkeys(calls) | self._calls

    def withdraw(self, call: Call) -> bool:
        """Remove a call that was not sent; return whether it was here."""
        if not call.sent and call in self._calls:
            del self._calls[call]
            return True
        return False

    def take(self) -> list[Call]:
        """Remove and return all calls, to be sent or failed."""
        calls, self._calls = self._calls, {}
        return list(calls)

    def take_exhausted(self) -> list[Call]:
        exhausted = [call for call in self._calls if self.is_exhausted(call)]
        for call in exhausted:
            del self._calls[call]
        return exhausted

    def fail_attempt(self, error: BackendError, *, hopeless: bool = False) -> None:
        """Count a failed attempt to connect; fail the exhausted calls, or all if it is hopeless."""
        for call in self._calls:
            call.tries += 1
        for call in self.take() if hopeless else self.take_exhausted():
            call.on_done(call, error)
