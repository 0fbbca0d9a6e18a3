"""Line: calls get through to one server, over as many connections as it takes.

A connection that breaks is opened anew, with exponential backoff and jitter,
and every call that was not answered is made again: all our scripts can be
repeated without harm. A call gives up after ``attempts`` failures in a row, and
at once when the server's answer will not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from random import SystemRandom
from typing import Any

from hiredis import ReplyError

from slotwise.errors import BackendError
from slotwise.redis import _diagnosis, _outages
from slotwise.redis._config import RedisConfig
from slotwise.redis._endpoint import Address
from slotwise.redis._net.connection import Call, Connection, IntoFuture
from slotwise.redis._net.handshake import Handshake
from slotwise.redis._net.preparation import open_connection
from slotwise.redis._net.sentinel import ask_sentinels
from slotwise.redis._scripts import OURS, Script, load

# Not the random module's own: its seed belongs to others, and forked children share it.
_jitter = SystemRandom()


class Reconnector:
    """One loop's way to one server."""

    # Between any two ticks:
    #   N1  every call that was submitted and has no answer is in the link, in
    #       _backlog, among those refused or held back, or was handed to the seat
    #   N2  while _backlog is not empty or somebody listens, there is a link or
    #       one is being opened

    def __init__(
        self,
        config: RedisConfig,
        loop: asyncio.AbstractEventLoop,
        address: Address | None,
        channel: str | None,
        *,
        on_message: Callable[[bytes], object],
        on_open: Callable[[bool], object],
        on_moved: Callable[[Call, str, bool], bool],
        on_unsettled: Callable[[Call, float], object],
        on_trouble: Callable[[], object],
        on_silence: Callable[[], object] | None = None,
        listens: Callable[[], bool],
    ) -> None:
        self.config = config
        self.loop = loop
        self.address = address
        self.channel = channel
        self._server = config.endpoint.server(address)
        self.link: Connection | None = None
        self.trouble: BackendError | None = None  # why there is no link
        self._on_message = on_message
        self._on_open = on_open
        self._on_moved = on_moved
        self._on_unsettled = on_unsettled
        self._on_trouble = on_trouble
        self._on_silence = on_silence
        self._listens = listens
        self._backlog: list[Call] = []
        # While the server learns scripts that it forgot, or can't serve anybody for a
        # moment: the calls that it refused, and those made since, which must not pass them.
        self._refused: list[Call] = []
        self._held_back: list[Call] | None = None
        self._pause = 0.0  # before they are made again
        self._pausing: asyncio.TimerHandle | None = None
        self._opening = False
        self._attempt = 0  # to open a connection; what became of earlier ones is of no interest
        self._primary: Address | None = None  # that the sentinels named last, if they did
        self._opened_before = False
        self._failures = 0
        self._ended = False
        self.used_at = time.monotonic()  # when the last call was made

    def submit(self, call: Call) -> None:
        self.used_at = time.monotonic()
        if self._held_back is not None:
            self._held_back.append(call)
        elif self.link is not None:
            self.link.send(call)
        else:
            self._backlog.append(call)
            self.open()

    def command(self, *words: object) -> asyncio.Future[Any]:
        """The reply to a plain command. Who stops waiting does not stop the call."""
        reply: asyncio.Future[Any] = self.loop.create_future()
        self.submit(Call(None, (), list(words), IntoFuture(reply)))
        return reply

    def withdraw(self, call: Call) -> bool:
        """Take back a call; False if the server may have seen it, or will."""
        for calls in (self._backlog, self._held_back or []):
            if not call.sent and call in calls:
                calls.remove(call)
                return True
        return False

    def owes(self, slot: int | None) -> bool:
        """Whether replies to calls of a hash slot are under way."""
        return self.link is not None and self.link.owes(slot)

    def take_backlog(self) -> list[Call]:
        """Hand over what has not been sent, for another line."""
        backlog, self._backlog = self._backlog, []
        return backlog

    # --------------------------------------------------------------- opening

    def open(self) -> None:
        """Have a connection, now or as soon as one can be had."""
        if self._opening or self.link is not None or self._ended:
            return
        self._opening = True
        delay = 0.0
        if self._failures:
            longest = self.config.backoff * 2 ** min(self._failures - 1, 30)
            delay = min(longest, self.config.max_backoff) * _jitter.uniform(0.5, 1)
        self._attempt += 1
        if delay:
            self.loop.call_later(delay, self._start_opening, self._attempt)
        else:
            self._start_opening(self._attempt)

    def _start_opening(self, attempt: int) -> None:
        if attempt == self._attempt:
            _in_thread(self._open_in_thread, attempt)

    def _open_in_thread(self, attempt: int) -> None:
        result: Handshake | BackendError
        try:
            result = open_connection(self.config, self.address, self.channel, load_scripts=False)
        except BackendError as error:
            result = error
        except BaseException as error:  # a bug must not leave callers waiting
            said = _diagnosis.said_by(self.config.endpoint, repr(error))
            result = _diagnosis.Unusable(f"{self.config.endpoint} can't be used: {said}")
        try:
            self.loop.call_soon_threadsafe(self._opened, attempt, result)
        except RuntimeError:  # the loop was closed meanwhile
            if isinstance(result, Handshake):
                result.sock.close()

    def _opened(self, attempt: int, result: Handshake | BackendError) -> None:
        if attempt != self._attempt or self._ended:
            if isinstance(result, Handshake):
                result.sock.close()
            return
        self._opening = False
        if isinstance(result, BackendError):
            self._failed(result)
            return
        self.trouble = None
        _outages.end(self._server)
        if self.address is not None:  # a node answers, and so does its cluster
            _outages.end(self.config.endpoint.server())
        self.link = Connection(
            result,
            self.loop,
            self.config.reply_timeout,
            self._answered,
            self._on_message,
            self._lost,
            on_silence=self._on_silence,
            # A line without a channel makes calls that block: there no reply is late.
            verify=self._verify if self.config.endpoint.service and self.channel else None,
        )
        for (
            script
        ) in result.missing_scripts:  # a call of one that is unknown would be passed by others
            self.link.send(_load(script))
        again, self._opened_before = self._opened_before, True
        # Whoever was in the middle of something looks first, so that grants
        # made meanwhile are known before anything new is asked.
        self._on_open(again)
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            self.submit(call)

    def _failed(self, error: BackendError) -> None:
        """Let those give up that have tried for long enough."""
        self.trouble = error
        self._failures += 1
        if isinstance(error, _diagnosis.Unreachable):
            _outages.begin(self._server, error, broken=True)
        hopeless = isinstance(error, _diagnosis.Refused)
        staying: list[Call] = []
        leaving: list[Call] = []
        for call in self._backlog:
            call.tries += 1
            tired = call.tries >= self.config.attempts and not call.patient
            (leaving if hopeless or tired else staying).append(call)
        self._backlog = staying
        for call in leaving:
            call.on_done(call, error)
        if self._backlog or self._listens():
            self.open()
            self._on_trouble()
        else:
            self._failures = 0

    def _lost(self, link: Connection, error: Exception, pending: list[Call]) -> None:
        if link is not self.link:
            return
        self.link = None
        self.trouble = _diagnosis.unreachable(self.config.endpoint, error)
        refused, self._refused = self._refused, []
        held_back, self._held_back = self._held_back or [], None
        if self._pausing is not None:
            self._pausing.cancel()
        self._pause, self._pausing = 0.0, None
        self._backlog = refused + pending + held_back + self._backlog
        if self._ended:
            return
        if self._backlog:
            _outages.begin(self._server, self.trouble, broken=True)
        # A connection that breaks on every call must not be retried for ever.
        for call in pending:
            call.tries += 1
            call.doubtful = True
        tired = [c for c in self._backlog if c.tries >= self.config.attempts and not c.patient]
        for call in tired:
            self._backlog.remove(call)
            call.on_done(call, self.trouble)
        if self._backlog or self._listens():
            self.open()

    # -------------------------------------------------------------- sentinels

    def follow(self, primary: Address) -> None:
        """Leave a server that is not the primary any more, or is being tried in vain."""
        if self.link is not None:
            if self.link.address != primary:
                self.link.lose(ConnectionResetError("it is no primary any more"))
        elif self._opening and self._primary != primary:
            self._attempt += 1
            self._start_opening(self._attempt)
        self._primary = primary

    def _verify(self, link: Connection) -> None:
        """Find out whether a server that was silent is still the primary.

        If no sentinel answers, it is not believed either: it may be cut off with us.
        """

        def ask() -> None:
            try:
                primary = ask_sentinels(self.config)
            except (BackendError, ValueError):
                primary = None
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self.loop.call_soon_threadsafe(verified, primary)

        def verified(primary: Address | None) -> None:
            if primary is not None and primary == link.address:
                link.trust()
            else:
                link.lose(ConnectionResetError("no sentinel calls it the primary any more"))

        _in_thread(ask)

    # --------------------------------------------------------------- answers

    def _answered(self, call: Call, reply: Any) -> None:
        self._failures = 0
        if _outages.ongoing:
            _outages.answered(self._server)
        if isinstance(reply, ReplyError):
            self._answered_with_error(call, reply)
        else:
            call.on_done(call, reply)
        if self._held_back is not None and self.link is not None and self.link.is_idle():
            if not self._pause:
                self._go_on()
            elif self._pausing is None:
                self._pausing = self.loop.call_later(self._pause, self._go_on)

    def _answered_with_error(self, call: Call, reply: Any) -> None:
        text = str(reply)
        if text.startswith("NOSCRIPT") and call.sha_only:
            call.on_done(call, _diagnosis.scripts_missing(self.config.endpoint, reply))
        elif text.startswith("NOSCRIPT"):
            call.whole = True  # for users who may not load scripts
            self._hold_back(call)
        elif call.whole and _diagnosis.denies_eval(reply):
            # It may have been allowed to load them, just before this call.
            call.whole, call.sha_only = False, True
            self._hold_back(call)
        elif text.startswith(("MOVED", "ASK")) and self._on_moved(call, text, self.owes(call.slot)):
            pass
        elif _diagnosis.passes(reply) or ("READONLY" in text and self.config.endpoint.service):
            call.tries += 1
            if call.tries >= self.config.attempts + 3 and not call.patient:
                call.on_done(call, _diagnosis.refused(self.config.endpoint, reply))
                return
            delay = min(self.config.backoff * 2**call.tries, self.config.max_backoff)
            if self.config.endpoint.cluster and text.startswith(("TRYAGAIN", "CLUSTERDOWN")):
                self._on_unsettled(call, delay)  # others' slots may be served
            else:
                self._pause = max(self._pause, delay)
                self._hold_back(call)
            if "READONLY" in text and self.link is not None:
                # It was demoted: the sentinels know by whom it was replaced.
                self.link.lose(ConnectionResetError("it is no primary any more"))
        else:
            call.on_done(call, _diagnosis.refused(self.config.endpoint, reply))

    def _hold_back(self, call: Call) -> None:
        self._refused.append(call)
        if self._held_back is None:
            self._held_back = []

    def _go_on(self) -> None:
        """Send the scripts, then what was refused, and then what came after.

        All scripts: one that stayed unknown would be refused again, while calls of
        others pass it.
        """
        refused, held_back = self._refused, self._held_back or []
        self._refused, self._held_back = [], None
        self._pause, self._pausing = 0.0, None
        if any(call.whole for call in refused):
            for name in OURS:
                self.submit(_load(load(name)))
        for call in refused:
            self.submit(call)
        for call in held_back:
            self.submit(call)

    # ---------------------------------------------------------------- ending

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, or one is being opened."""
        return self.link is not None or self._opening

    def hang_up(self) -> None:
        """Close the connection if nothing is under way; the next call opens another."""
        busy = self._backlog or self._refused or self._held_back is not None
        if self._opening or busy or self.link is None or not self.link.is_quiet():
            return
        link, self.link = self.link, None
        link.close()
        self._opened_before = False  # nobody waited for messages meanwhile

    def end(self, error: BackendError) -> None:
        """Close for good, in the loop's thread."""
        self._ended = True
        if self.link is not None:
            self.link.lose(ConnectionResetError("closed by us"))
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            call.on_done(call, error)

    def abandon(self) -> None:
        """Close the socket only, from any thread."""
        self._ended = True
        if self.link is not None:
            self.link.abandon()


def _in_thread(run: Callable[..., object], *args: object) -> None:
    threading.Thread(target=run, args=args, name="slotwise-open", daemon=True).start()


def _load(script: Script) -> Call:
    return Call(None, (), ["SCRIPT", "LOAD", script.source], _ignore)


def _ignore(_: Call, reply: Any) -> None:
    """Nobody waits for this reply."""
