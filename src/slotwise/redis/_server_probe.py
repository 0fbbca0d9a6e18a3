"""ServerProbe: find out over a new connection whether a silent server still answers.

The other end of every open connection may be gone, so none of those can tell. What follows from
the answer is up to the caller.

A fleet must not open ever more connections to a server in trouble. So while one silence lasts, the
server is asked with exponential backoff: when it recovers, the open connections answer as well.
And when one short silence follows another, the server is slow rather than gone: then it is asked
only after some of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Callable
from random import SystemRandom

from slotwise._wait.threads import start_thread
from slotwise.errors import BackendError
from slotwise.redis._call_limits import ServerSettings
from slotwise.redis._diagnosis import ClosedByUs
from slotwise.redis._endpoint import Address
from slotwise.redis._net.preparation import open_connection

_jitter = SystemRandom()

# The pause before a server is asked a second time because of one silence; it doubles each time.
_PAUSE, _MOST_PAUSE = 0.3, 5.0
# The first `_AT_ONCE` silences shorter than `_SHORT` seconds are each followed by a probe, later
# ones every `_EVERY` seconds. A dead connection is noticed within a second all the same.
_SHORT, _AT_ONCE, _EVERY = 0.55, 4, 2.0


class ServerProbe:
    """Opens a connection in a thread of its own, and closes it again; one at a time.

    ``on_answer`` is called in the loop that started it, with the time when the server was asked.
    """

    def __init__(
        self,
        settings: ServerSettings,
        address: Address | None,
        on_answer: Callable[[float], object],
    ) -> None:
        self._settings = settings
        self._address = address  # of a node, if it is a cluster
        self._on_answer = on_answer
        self._is_running = False
        self._is_ended = False
        self._sock: socket.socket | None = None
        self._asked_at = -math.inf
        self._pause = 0.0  # after the last one, if the silence lasts
        self._not_before = -math.inf
        self._credit, self._credit_at = float(_AT_ONCE), time.monotonic()

    def start(self, silent_since: float) -> None:
        """Ask the server about a silence, if that is worth it; call this in the loop."""
        if self._is_running or not self._is_worth_asking(silent_since, time.monotonic()):
            return
        self._is_running, self._is_ended = True, False
        loop = asyncio.get_running_loop()
        start_thread(
            *("probe", lambda: self._ask(loop)),
            on_failure=lambda _: loop.call_soon(self._ended, self._asked_at, False),
        )

    def _is_worth_asking(self, silent_since: float, now: float) -> bool:
        if silent_since <= self._asked_at:  # it was asked about this silence already
            if now < self._not_before:
                return False
            self._pause = min(2 * self._pause, _MOST_PAUSE)
        else:
            credit = self._credit + (now - self._credit_at) / _EVERY
            self._credit, self._credit_at = min(credit, float(_AT_ONCE)), now
            if self._credit < 1 and now - silent_since < _SHORT:
                return False
            self._credit = max(self._credit - 1, 0.0)
            self._pause = _PAUSE
        self._asked_at = now
        return True

    def end(self) -> None:
        """Stop asking: the answer isn't needed any more."""
        self._is_ended = True
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                sock.shutdown(socket.SHUT_RDWR)  # ends its thread

    def close_sockets(self) -> None:
        """Close only the socket, in a forked child."""
        if self._sock is not None:
            self._sock.close()

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        asked_at, has_answered = time.monotonic(), False
        try:
            open_connection(
                *(self._settings.config, self._address, None),
                load_scripts=False,
                on_socket=self._note_socket,
            ).sock.close()
            has_answered = True
        except BackendError:
            pass
        finally:
            self._sock = None
            try:
                loop.call_soon_threadsafe(self._ended, asked_at, has_answered)
            except RuntimeError:  # the loop was closed in the meantime
                self._is_running = False

    def _note_socket(self, sock: socket.socket) -> None:
        """Note the socket, in the probing thread, so that `end` can interrupt it.

        Raises:
            ClosedByUs: `end` was called before there was a socket.
        """
        self._sock = sock
        if self._is_ended:
            sock.close()
            raise ClosedByUs("the answer isn't needed any more")

    def _ended(self, asked_at: float, has_answered: bool) -> None:
        self._is_running = False
        self._not_before = time.monotonic() + self._pause * _jitter.uniform(0.5, 1)
        if has_answered:
            self._on_answer(asked_at)
