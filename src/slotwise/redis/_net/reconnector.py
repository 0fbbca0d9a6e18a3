"""Reconnector: reopen a broken connection, so that calls on it still get their replies.

A connection that breaks is reopened with exponential backoff and jitter. Every call without a
reply is then sent again: all our scripts can be repeated without harm. A call fails after
``attempts`` failures in a row, and at once if repeating it wouldn't change the reply.

Callers share a connection, whatever their limits: it follows `ServerSettings`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from slotwise.errors import BackendError
from slotwise.redis import _diagnosis, _outages
from slotwise.redis._endpoint import Address
from slotwise.redis._net.call import Backlog, Call
from slotwise.redis._net.connection import Connection
from slotwise.redis._net.handshake import Handshake, in_thread
from slotwise.redis._net.preparation import ask_sentinels, open_connection
from slotwise.redis._scripts import Script, in_use, load

if TYPE_CHECKING:
    from slotwise.redis._loop_client import LoopClient

# Not the random module's own: its seed belongs to others, and forked children share it.
_jitter = SystemRandom()

_RELEASE = load("release")

# A release that a primary has confirmed may be lost with it, or the primary may have been replaced
# just before. For this long, this many releases are remembered, to repeat them on its successor.
_REMEMBERED, _MOST_REMEMBERED = 2.5, 10_000


class Reconnector:
    """The calls of one event loop to one server."""

    # Between any two ticks:
    #   R1  every call that was submitted and has no reply is in the connection, in _backlog,
    #       among those refused or held back, or was handed to the LoopClient
    #   R2  while _backlog is not empty or somebody listens, there is a connection or
    #       one is being opened

    def __init__(self, client: LoopClient, address: Address | None) -> None:
        self._client = client
        self._settings = settings = client.settings
        self._endpoint = settings.config.endpoint
        self.loop = client.loop
        self.address = address
        self.channel = f"slotwise:{client.token}"
        self._server = self._endpoint.server(address)
        self.connection: Connection | None = None
        self.trouble: BackendError | None = None  # why there is no connection
        self.backlog = Backlog(settings)
        # While missing scripts are loaded, or the server is temporarily unable to serve: the
        # calls that it refused, and those made since, which must not overtake them.
        self._refused: list[Call] = []
        self._held_back: list[Call] | None = None
        self._scripts_missing = False
        self._pause = 0.0  # before they are sent again
        self._pausing: asyncio.TimerHandle | None = None
        self._opening = False
        self._opening_since = 0.0  # when the last attempt began
        self._attempt = 0  # number of the attempt to open; results of earlier ones are ignored
        self._primary: Address | None = None  # the primary that a sentinel named last
        # With sentinels: the server that answered last, and when it confirmed which releases.
        self._served_by: Address | None = None
        self._released: deque[tuple[float, Call]] = deque(maxlen=_MOST_REMEMBERED)
        self._opened_before = False
        self._failures = 0
        self._ended = False
        self.used_at = time.monotonic()  # when the last call was made

    def submit(self, call: Call) -> None:
        self.used_at = time.monotonic()
        if self._held_back is not None:
            self._held_back.append(call)
        elif self.connection is not None:
            self.connection.send(call)
        else:
            self.backlog.add(call)
            self.open()

    def withdraw(self, call: Call) -> bool:
        """Take back a call that was not sent; return False if it was."""
        if self._held_back is not None and not call.sent and call in self._held_back:
            self._held_back.remove(call)
            return True
        return self.backlog.withdraw(call)

    def has_pending(self, slot: int | None) -> bool:
        """Whether replies to calls of a hash slot are due."""
        return self.connection is not None and self.connection.has_pending(slot)

    # --------------------------------------------------------------- opening

    def open(self) -> None:
        """Open a connection, after the backoff if earlier attempts failed."""
        if self._opening or self.connection is not None or self._ended:
            return
        self._opening = True
        delay = 0.0
        if self._failures:
            delay = self._settings.pause(self._failures) * _jitter.uniform(0.5, 1)
        self._attempt += 1
        if delay:
            self.loop.call_later(delay, self._start_opening, self._attempt)
        else:
            self._start_opening(self._attempt)

    def _start_opening(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._opening_since = time.monotonic()
            config, address, channel = self._settings.config, self.address, self.channel
            in_thread(
                *(self._endpoint, self.loop, "open"),
                lambda: open_connection(config, address, channel, load_scripts=False),
                partial(self._opened, attempt),
            )

    def _opened(self, attempt: int, result: Handshake | BackendError) -> None:
        if attempt != self._attempt or self._ended:
            return  # a connection closes itself
        self._opening = False
        if isinstance(result, BackendError):
            self._failed(result)
            return
        self.trouble = None
        _outages.end(self._server, self._opening_since)
        if self.address is not None:  # a node that answers ends the outage of its cluster
            _outages.end(self._endpoint.server(), self._opening_since)
        self.connection = Connection(
            result,
            self.loop,
            lambda: self._settings.config.reply_timeout,
            self._replied,
            self._client.shared.dispatch_published,
            self._lost,
            on_silence=partial(self._client.shared.heartbeat_thread.on_silence, self.address),
            verify=self._verify if self._endpoint.service else None,
            idle_pause=self._client.idle_pause,
        )
        # Scripts first: a call of a missing one would be refused, and overtaken by other calls.
        released = (call for _, call in self._released)
        for script in in_use(call.script for call in itertools.chain(self.backlog, released)):
            if script in result.missing_scripts:
                self.connection.send(_load(script))
        again, self._opened_before = self._opened_before, True
        # Existing waiters ask first, so that grants made in the meantime are known before
        # anything new is requested.
        if again:
            self._client.shared.on_reopened(self._client, self.address)
        self._repeat_releases(result.address)
        for call in self.backlog.take():
            self.submit(call)

    def _failed(self, error: BackendError) -> None:
        """Fail the calls that are out of attempts, and try again for the others."""
        self.trouble = error
        self._failures += 1
        if isinstance(error, _diagnosis.Unreachable):
            asked_at = self._opening_since
            ago = time.monotonic() - asked_at
            _outages.begin(self._server, error, broken=True, ago=ago, asked_at=asked_at)
        hopeless = isinstance(error, _diagnosis.Refused)
        self.backlog.fail_attempt(error, hopeless=hopeless)
        if self.backlog or self._client.listens(self.address):
            self.open()
            self._client.on_trouble()
        else:
            self._failures = 0

    def _lost(self, connection: Connection, error: Exception, pending: list[Call]) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        self.trouble = _diagnosis.unreachable(self._endpoint, error)
        refused, self._refused = self._refused, []
        held_back, self._held_back = self._held_back or [], None
        if self._pausing is not None:
            self._pausing.cancel()
        self._pause, self._pausing = 0.0, None
        unanswered = refused + pending + held_back
        asked_at = max((call.waits_since for call in unanswered), default=math.inf)
        self.backlog.put_first(unanswered)
        if self._ended:
            return
        if self.backlog:
            _outages.begin(self._server, self.trouble, broken=True, asked_at=asked_at)
        # A call that breaks every connection must not be repeated forever.
        for call in pending:
            call.tries += 1
            call.doubtful = True
        for call in self.backlog.take_exhausted():
            call.on_done(call, self.trouble)
        if self.backlog or self._client.listens(self.address) or self._released:
            self.open()

    # -------------------------------------------------------------- sentinels

    def _remember_release(self, call: Call) -> None:
        now = time.monotonic()
        while self._released and self._released[0][0] < now - _REMEMBERED:
            self._released.popleft()
        self._released.append((now, call))

    def _repeat_releases(self, address: Address) -> None:
        """Repeat recent releases on a new primary.

        Without that, slots whose release it has never seen would be held there until silence ends
        them. A second release is harmless, since it names its acquisition.
        """
        is_another = self._served_by not in (None, address)
        self._served_by = address
        released = [call for _, call in self._released]
        self._released.clear()
        if is_another and self.connection is not None:
            for call in released:
                call.tries = 0
                self.connection.send(call)

    def follow(self, primary: Address) -> None:
        """Drop the connection, or the attempt to open one, to a server that isn't the primary."""
        if self.connection is not None:
            if self.connection.address != primary:
                self.connection.lose(ConnectionResetError("it is not the primary any more"))
        elif self._opening and self._primary != primary:
            self._attempt += 1
            self._start_opening(self._attempt)
        self._primary = primary

    def _verify(self, connection: Connection) -> None:
        """Ask the sentinels whether a server that was silent is still the primary.

        If no sentinel answers, it isn't trusted either: it may be cut off together with us.
        """

        def verified(primary: Address | BackendError) -> None:
            if primary == connection.address:
                connection.trust()
            else:
                connection.lose(
                    ConnectionResetError("no sentinel names it as the primary any more")
                )

        config = self._settings.config
        in_thread(self._endpoint, self.loop, "verify", lambda: ask_sentinels(config), verified)

    # --------------------------------------------------------------- replies

    def _replied(self, call: Call, reply: Any) -> None:
        self._failures = 0
        if _outages.ongoing:
            _outages.answered(self._server)
        if isinstance(reply, ReplyError):
            self._replied_error(call, reply)
        else:
            if self._endpoint.service is not None and call.script is _RELEASE:
                self._remember_release(call)
            call.on_done(call, reply)
        if self._held_back is None or self.connection is None:
            return
        if self.connection.is_idle():
            if not self._pause:
                self._resume()
            elif self._pausing is None:
                self._pausing = self.loop.call_later(self._pause, self._resume)

    def _replied_error(self, call: Call, reply: Any) -> None:
        text = str(reply)
        demoted = "READONLY" in text and self._endpoint.service is not None
        if text.startswith("NOSCRIPT") and call.sha_only:
            call.on_done(call, _diagnosis.scripts_missing(self._endpoint, reply))
        elif text.startswith("NOSCRIPT"):
            # If missing again, this user may not load scripts, or they keep being flushed.
            call.whole, call.reloaded = call.reloaded, True
            self._scripts_missing = True
            self._hold_back(call)
        elif call.whole and _diagnosis.denies_eval(reply):
            # This user may still be allowed to load scripts: that was tried before this call.
            call.whole, call.sha_only = False, True
            self._hold_back(call)
        elif text.startswith(("MOVED", "ASK")) and self._client.on_moved(
            call, text, self.has_pending(call.slot)
        ):
            pass
        elif demoted or _diagnosis.is_temporary(reply):
            call.tries += 1
            if self.backlog.is_exhausted(call, more=3):
                call.on_done(call, _diagnosis.refused(self._endpoint, reply))
                return
            delay = self._settings.pause(call.tries + 1)
            if self._endpoint.cluster and text.startswith(("TRYAGAIN", "CLUSTERDOWN")):
                self._client.hold_back(call, delay)  # other slots may be served
            else:
                self._pause = max(self._pause, delay)
                self._hold_back(call)
            if demoted and self.connection is not None:
                # The sentinels know its successor.
                self.connection.lose(ConnectionResetError("it is not the primary any more"))
        else:
            call.on_done(call, _diagnosis.refused(self._endpoint, reply))

    def _hold_back(self, call: Call) -> None:
        self._refused.append(call)
        if self._held_back is None:
            self._held_back = []

    def _resume(self) -> None:
        """Load missing scripts, then send the refused calls, and then the later ones.

        All scripts in use are loaded: a call of one that is still missing would be refused again,
        and overtaken by calls of the others. Other scripts are loaded when they are called: every
        process does this after a ``SCRIPT FLUSH``, and compiling takes the server milliseconds.
        """
        refused, held_back = self._refused, self._held_back or []
        self._refused, self._held_back = [], None
        self._pause, self._pausing = 0.0, None
        if self._scripts_missing:
            self._scripts_missing = False
            for script in in_use(call.script for call in (*refused, *held_back)):
                self.submit(_load(script))
        for call in refused:
            self.submit(call)
        for call in held_back:
            self.submit(call)

    # ---------------------------------------------------------------- ending

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, or one is being opened."""
        return self.connection is not None or self._opening

    def close_if_idle(self) -> None:
        """Close the connection if no call is pending; the next call opens another."""
        busy = self.backlog or self._refused or self._held_back is not None
        if self._opening or busy or self.connection is None or not self.connection.is_quiet():
            return
        connection, self.connection = self.connection, None
        connection.close()
        self._opened_before = False  # nobody missed a message

    def end(self, error: BackendError) -> None:
        """Close for good, in the loop's thread; all calls fail with ``error``."""
        self._ended = True
        self._attempt += 1
        self._opening = False
        self._failures = 0
        if self.connection is not None:
            self.connection.lose(ConnectionResetError("closed by us"))
        for call in self.backlog.take():
            call.on_done(call, error)

    def close_socket(self) -> None:
        """Close only the socket, from any thread."""
        self._ended = True
        connection = self.connection
        if connection is not None:
            connection.close_socket()


def _load(script: Script) -> Call:
    return Call(None, (), ["SCRIPT", "LOAD", script.source], lambda *_: None)
