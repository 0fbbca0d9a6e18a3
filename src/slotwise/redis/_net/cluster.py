"""Which node of a Redis Cluster serves which hash slot, learned and relearned.

Nothing here holds a connection: asking is done in a short-lived thread.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Callable

from slotwise.errors import BackendError
from slotwise.redis._config import RedisConfig
from slotwise.redis._net.handshake import Address, ask_cluster


class ClusterMap:
    """Hash slots to addresses, shared by all loops of a process."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._lasts: list[int] = []  # the last slot of each range, in order
        self._addresses: list[Address] = []
        self._moved: dict[int, Address] = {}  # learned since the last full answer

    def address_of(self, slot: int) -> Address | None:
        """Who serves ``slot``, as far as is known."""
        moved = self._moved.get(slot)
        if moved is not None or not self._lasts:
            return moved
        at = bisect_left(self._lasts, slot)
        return self._addresses[at] if at < len(self._addresses) else None

    def primaries(self) -> list[Address]:
        return list(dict.fromkeys(self._addresses))

    def note(self, slot: int, address: Address) -> None:
        self._moved[slot] = address

    def learn(
        self, loop: asyncio.AbstractEventLoop, then: Callable[[BackendError | None], object]
    ) -> None:
        """Ask the cluster anew, and call ``then`` in the loop, with the error if it failed."""

        def ask() -> None:
            error: BackendError | None = None
            try:
                ranges = ask_cluster(self._config, tuple(self.primaries()))
                self._lasts = [last for last, _ in ranges]
                self._addresses = [address for _, address in ranges]
                self._moved = {}
            except BackendError as failure:
                error = failure
            try:
                loop.call_soon_threadsafe(then, error)
            except RuntimeError:  # closed meanwhile
                pass

        threading.Thread(target=ask, name="slotwise-cluster", daemon=True).start()


def parse_redirection(text: str) -> tuple[bool, int, Address]:
    """``MOVED 42 host:port`` or ``ASK ...``: whether to ask only once, the slot, the address."""
    word, slot, where = text.split()[:3]
    host, _, port = where.rpartition(":")
    return word == "ASK", int(slot), (host.strip("[]"), int(port))
