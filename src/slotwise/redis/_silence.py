"""The rule for silence: whoever gets no reply asks again over another connection.

No reply for `SILENCE` seconds: the server is asked over a new connection, since the other end of
every open one may be gone. If it answers there, a connection that stays silent is dead, and its
calls are made again (`Connection`). If it doesn't, the server is away, and everybody waits for it
as long as they were asked to.

A fleet must not open ever more connections to a server in trouble. So it is asked at most once in
`AWAY` seconds, and while one silence lasts with exponential backoff.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from random import SystemRandom

from slotwise.errors import BackendError
from slotwise.redis._config import ServerSettings
from slotwise.redis._endpoint import Address
from slotwise.redis._net.handshake import Handshake, in_thread
from slotwise.redis._net.preparation import open_connection

SILENCE, AWAY = 0.3, 1.0

_MOST_PAUSE = 5 * AWAY
_jitter = SystemRandom()


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
        self._asked_at = self._not_before = -math.inf
        self._pause = AWAY  # after the last one, if the silence lasts

    def start(self, silent_since: float) -> None:
        """Ask the server about a silence, unless it was asked lately; call this in the loop."""
        now = time.monotonic()
        if self._is_running or now < self._not_before:
            return
        lasts = silent_since <= self._asked_at  # it was asked about this silence already
        self._pause = min(2 * self._pause, _MOST_PAUSE) if lasts else AWAY
        self._asked_at = now
        self._is_running = True
        config, loop = self._settings.config, asyncio.get_running_loop()
        in_thread(
            *(config.endpoint, loop, "probe"),
            lambda: open_connection(config, self._address, None, load_scripts=False),
            self._ended,
        )

    def _ended(self, result: Handshake | BackendError) -> None:
        self._is_running = False
        self._not_before = time.monotonic() + self._pause * _jitter.uniform(0.5, 1)
        if isinstance(result, Handshake):
            self._on_answer(self._asked_at)
