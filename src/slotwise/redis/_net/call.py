"""Call: one command to a server, and what to do with its reply.

`connection` sends calls, `backlog` keeps those that wait for a connection, and `reconnector`
repeats those that got no reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import pack_command

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


class IntoFuture:
    """Set the result of a future to a reply, unless it is done."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def __call__(self, _: Call | None, reply: Any) -> None:
        if isinstance(reply, BaseException):
            fail_future(self._future, reply)
        elif not self._future.done():
            self._future.set_result(reply)


def pack_half(words: Sequence[Any]) -> bytes:
    """Return part of a command in RESP; the caller prepends the number of all its words."""
    packed: bytes = pack_command(tuple(words))
    return packed[packed.index(b"\r\n") + 2 :]
