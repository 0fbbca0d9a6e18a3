"""Connection: multiplex all calls of an event loop over one open socket.

Calls made in one tick of the loop are sent in one write. Replies arrive in the order of the
calls, with messages of the subscription between them, on the same connection (RESP3). `handshake`
opens the socket, and `reconnector` reopens it.

It is a plain socket, not an asyncio transport: a loop may be closed without telling us, and any
thread can still close the socket then.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hiredis import PushNotification

from slotwise.redis._net.call import Call
from slotwise.redis._net.handshake import Handshake
from slotwise.redis._net.preparation import LATE
from slotwise.redis._silence import AWAY, SILENCE

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# How long to delay a request that will be queued anyway, so that it is sent with other calls.
# Its reply would wake the loop for nothing, and on each wake-up asyncio rounds the rest of a
# sleep up to a millisecond.
_LINGER = 0.003

# How long an otherwise idle loop polls for a reply before it sleeps: about twice the cost of
# sleeping and being woken on virtual processors. A server on this machine replies in that time.
# After each reply that took longer, twice as many calls as before don't poll at all, up to this
# many doublings, so that polling costs next to nothing with a distant server.
_POLL = 0.0002
_DOUBLINGS = 10

# The shortest time between two checks of whether a reply is overdue.
_GRAIN = 0.02


def _ignore_answer(_: Call, reply: Any) -> None:
    """Accept any reply, even an error: it shows that the server answers."""


class Connection:
    """An open connection, in the thread of its event loop."""

    # Between any two ticks:
    #   C1  the server will send exactly one reply for each call in _pending, in that order
    #   C2  while anything is in _out, a flush is scheduled or the socket is full

    __slots__ = (
        "_answered",
        "_answered_before",
        "_doubted_until",
        "_failed_polls",
        "_flushing",
        "_idle",
        "_idle_pause",
        "_later",
        "_lingering",
        "_loop",
        "_on_lost",
        "_on_message",
        "_on_reply",
        "_on_silence",
        "_out",
        "_pending",
        "_poll_until",
        "_reader",
        "_ready",
        "_recv",
        "_reply_timeout",
        "_silent_since",
        "_skipped_polls",
        "_sock",
        "_suspicious",
        "_verify",
        "_waits_since",
        "_watch",
        "address",
        "alive_at",
        "answered_in",
        "closed",
        "full",
        "silent_at",
    )

    def __init__(
        self,
        handshake: Handshake,
        loop: asyncio.AbstractEventLoop,
        reply_timeout: Callable[[], float],
        on_reply: Callable[[Call, Any], object],
        on_message: Callable[[bytes], object],
        on_lost: Callable[[Connection, Exception, list[Call]], object],
        *,
        on_silence: Callable[[float], object] | None = None,
        verify: Callable[[Connection], object] | None = None,
        idle_pause: Callable[[], float | None] | None = None,
    ) -> None:
        self.address = handshake.address
        self._sock = handshake.take_socket()
        self._recv = self._sock.recv
        self._reader = handshake.reader
        self._loop = loop
        self._reply_timeout = reply_timeout
        self._on_reply = on_reply
        self._on_message = on_message
        self._on_lost = on_lost
        # Called while no reply arrives, with the time since when, to probe the server; then
        # `doubt_if_silent` is called.
        self._on_silence = on_silence
        self.silent_at = math.inf  # when that was called, with no reply since
        # When the latest call was sent that the server has answered on another connection, and how
        # long the reply took; set by any thread.
        self.alive_at, self.answered_in = -math.inf, 0.0
        # How long to wait before testing an idle connection; None if nobody relies on it.
        self._idle_pause = idle_pause
        self._out: list[bytes] = []
        self._pending: deque[Call] = deque()
        # Callbacks that are still to run in this tick; only asyncio's own loops show them.
        self._ready: deque[Any] | None = getattr(loop, "_ready", None)
        self._later: list[Callable[[], object]] = []
        self._lingering: asyncio.TimerHandle | None = None
        self._flushing = False
        self._poll_until = 0.0
        self._skipped_polls = 0  # this many calls are left to be sent without polling
        self._failed_polls = 0  # in a row
        self.full = False
        self.closed = False
        self._answered = 0
        self._answered_before = 0  # its value at the last check
        self._suspicious = False
        self._doubted_until = math.inf
        self._silent_since = 0.0  # when a reply was last seen, or the first call was sent
        self._watch: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None  # until an idle connection is tested
        # Called before a late reply is read; it then calls `trust` or `lose`.
        self._verify = verify
        self._waits_since = 0.0  # since when a reply is due, if late ones are verified
        loop.add_reader(self._sock, self._readable)

    # --------------------------------------------------------------- sending

    def send(self, call: Call) -> None:
        # No other call will come to share the write.
        at_once = call.alone and self.is_last_in_tick()
        call.waits_since = time.monotonic()
        if self._verify is not None and not self._pending:
            self._waits_since = call.waits_since
        self._out.append(call.pack())
        self._pending.append(call)
        call.sent = True
        if not self._flushing and not self.full:
            if at_once:
                self._flush()
                if self._skipped_polls:
                    self._skipped_polls -= 1
                elif call.eager:
                    self._poll_until = time.monotonic() + _POLL
                    self._loop.call_soon(self._poll)
            else:
                self._flushing = True
                self._loop.call_soon(self._flush)

    def _poll(self) -> None:
        """Keep the loop from sleeping until the reply has arrived, or isn't coming soon.

        The loop serves everything else meanwhile.
        """
        if not self._pending:
            self._failed_polls = 0
        elif time.monotonic() < self._poll_until:
            self._loop.call_soon(self._poll)
        else:
            self._skipped_polls = 2 ** min(self._failed_polls, _DOUBLINGS)
            self._failed_polls += 1

    def is_idle(self) -> bool:
        """Whether no reply is due."""
        return not self._pending

    def is_quiet(self) -> bool:
        """Whether nothing is being sent or awaited, or is about to be."""
        return not (self._pending or self._out or self._later)

    def has_pending(self, slot: int | None) -> bool:
        """Whether replies to calls of a hash slot are due."""
        return any(call.slot == slot for call in self._pending)

    def is_last_in_tick(self) -> bool:
        """Whether this is the last callback of its tick, with no reply due."""
        return self._ready is not None and not self._ready and not self._pending

    def before_flush(
        self, make_calls: Callable[[], object], *, linger: bool = False, first: bool = False
    ) -> None:
        """Call ``make_calls`` at the end of this tick, to send its calls with all others.

        With ``linger`` it may be called a moment later, so that more are sent together; with
        ``first`` it is called before the others.
        """
        if first:
            self._later.insert(0, make_calls)
        else:
            self._later.append(make_calls)
        if self._flushing or self.full:
            return
        if linger:
            if self._lingering is None:
                self._lingering = self._loop.call_later(_LINGER, self._flush)
        else:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self.closed:
            return
        if self._later:
            self._flushing = True  # what is sent meanwhile needs no flush of its own
            later, self._later = self._later, []
            for make_calls in later:
                make_calls()
        self._flushing = False
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        try:
            sent = self._sock.send(data)
        except _WOULD_BLOCK:
            sent = 0
        except OSError as error:
            self.lose(error)
            return
        if sent == len(data):
            self._out.clear()
            if self.full:
                self.full = False
                self._loop.remove_writer(self._sock)
        else:
            self._out = [data[sent:]]
            if not self.full:
                self.full = True
                self._loop.add_writer(self._sock, self._flush)
        if self._watch is None:
            self._start_watch()

    # ------------------------------------------------------------- receiving

    def _readable(self) -> None:
        if self.closed:
            return
        if self._verify is not None and self._pending:
            now = time.monotonic()
            if now - self._waits_since > LATE:
                self._loop.remove_reader(self._sock)
                self._verify(self)
                return
            self._waits_since = now
        try:
            data = self._recv(65536)
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self.lose(error)
            return
        if not data:
            self.lose(ConnectionResetError("it closed the connection"))
            return
        reader = self._reader
        reader.feed(data)
        pending = self._pending
        while True:
            try:
                reply = reader.gets()
            except Exception as error:  # not the Redis protocol
                self.lose(error)
                return
            if reply is False:
                break
            try:
                if type(reply) is PushNotification:
                    if reply[0] == b"message":
                        self._on_message(reply[2])
                elif pending:
                    self._answered += 1
                    self._on_reply(pending.popleft(), reply)
            except Exception as error:  # a bug; later calls still get their replies
                message = "slotwise failed to handle a reply of Redis"
                self._loop.call_exception_handler({"message": message, "exception": error})
            if self.closed:
                return
        # Decrypted bytes inside the TLS layer don't make the socket readable.
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            self._loop.call_soon(self._readable)

    def trust(self) -> None:
        """Continue to read: the server was verified."""
        if not self.closed:
            self._waits_since = time.monotonic()
            self._loop.add_reader(self._sock, self._readable)

    # -------------------------------------------------------------- watching

    def _start_watch(self) -> None:
        self._suspicious = False
        self.silent_at = self._doubted_until = math.inf
        self._silent_since = time.monotonic()
        self._answered_before = self._answered
        self._check_again()

    def silence(self) -> float:
        """Return for how many seconds replies have been due, and none has arrived.

        It may be up to half of `SILENCE` longer on a connection that was in use all the time.
        """
        has_answered = self._answered != self._answered_before
        if self._watch is None or not self._pending or has_answered:
            return 0.0
        return time.monotonic() - self._silent_since

    def _check_again(self) -> None:
        """Schedule a check for when the first reply is overdue, or sooner to notice a silence."""
        now = time.monotonic()
        due = min(self._overdue_at(), self._doubted_until, now + SILENCE / 2)
        wait = max(due - now, _GRAIN)
        self._watch = self._loop.call_later(wait, self._check)

    def _overdue_at(self) -> float:
        if not self._pending:
            return math.inf
        return max(self._pending[0].waits_since, self._silent_since) + self._reply_timeout()

    def _check(self) -> None:
        """Check whether any reply has arrived since the last check, and whether one is overdue."""
        self._watch = None
        if self.closed or not self._pending:
            self.silent_at = math.inf
            if not self.closed and self._idle is None and self._idle_pause is not None:
                pause = self._idle_pause()
                if pause is not None:
                    self._idle = self._loop.call_later(pause, self._try_out)
            return
        if self._answered != self._answered_before:
            self._start_watch()
            return
        now = time.monotonic()
        overdue = self._overdue_at() <= now
        if overdue and not self._suspicious:
            # If the loop was blocked, a reply may be in the socket: first give it time to be read.
            self._suspicious = True
            self._watch = self._loop.call_later(SILENCE, self._check)
            return
        if overdue or now >= self._doubted_until:
            self.lose(TimeoutError())
            return
        if self._on_silence is not None and now - self._silent_since >= SILENCE:
            self.silent_at = min(self.silent_at, now)
            self._on_silence(self._silent_since)
            self._doubt()
        self._check_again()

    def _try_out(self) -> None:
        """Test an idle connection: only a missing reply shows that it is dead."""
        self._idle = None
        pause = None if self._idle_pause is None else self._idle_pause()
        if self._watch is None and pause is not None:
            self.send(Call(None, (), ["TIME"], _ignore_answer))  # its reply is watched for

    @property
    def is_answering(self) -> bool:
        """Whether replies still arrive, though one of them may be late."""
        if self._answered != self._answered_before:
            return True
        # Right after a check, the last reply may be as old as the time between two checks.
        return time.monotonic() - self._silent_since < 1.5 * SILENCE

    def doubt_if_silent(self) -> None:
        """Close soon if this is silent while the server answers on others: see `alive_at`."""
        is_silent = self._answered == self._answered_before and self.silent_at < math.inf
        if is_silent and self._watch is not None and not self._suspicious:
            self._doubt()
            self._watch.cancel()
            self._check_again()

    def _doubt(self) -> None:
        """Give it some time more, if the server has answered a later call elsewhere.

        A busy server may answer a small new call before an earlier large one. It has longer if
        other replies are slow too. But a reply that was late because this process or the server
        was suspended says nothing about the next one.
        """
        is_passed_over = bool(self._pending) and self._pending[0].waits_since < self.alive_at
        if is_passed_over and self._doubted_until == math.inf:
            patience = min(max(SILENCE / 2, 2 * self.answered_in), 3 * AWAY)
            self._doubted_until = time.monotonic() + patience

    # ---------------------------------------------------------------- ending

    def lose(self, error: Exception) -> None:
        """Close after a failure; ``on_lost`` gets the calls that have no reply."""
        if self.closed:
            return
        self.close()
        # A test of this connection isn't repeated on another one.
        pending = [call for call in self._pending if call.on_done is not _ignore_answer]
        self._pending = deque()
        later, self._later = self._later, []
        self._on_lost(self, error, pending)
        for make_calls in later:
            make_calls()

    def close(self) -> None:
        """Close, in the loop's thread."""
        self.closed = True
        if not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
            if self.full:
                self._loop.remove_writer(self._sock)
        for timer in (self._watch, self._idle, self._lingering):
            if timer is not None:
                timer.cancel()
        self._sock.close()

    def close_socket(self) -> None:
        """Close only the socket, from any thread: the loop is closed, or the parent process's."""
        self.closed = True
        self._sock.close()
