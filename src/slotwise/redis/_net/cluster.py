"""ClusterMap: which node of a Redis Cluster serves which hash slot, kept up to date.

A node is asked in a short-lived thread, over a connection that is then closed. redis-py's own
map isn't used: it makes a client with a connection pool for every node.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable

from hiredis import ReplyError

from slotwise.errors import BackendError
from slotwise.redis import _diagnosis
from slotwise.redis._config import RedisConfig, ServerSettings
from slotwise.redis._endpoint import Address
from slotwise.redis._net.handshake import greet, in_thread


class ClusterMap:
    """Hash slots to addresses, shared by all loops of a process."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._endpoint = settings.config.endpoint
        self._lasts: list[int] = []  # the last slot of each range, in order
        self._addresses: list[Address] = []
        self._moved: dict[int, Address] = {}  # learned since the last complete answer

    def address_of(self, slot: int) -> Address | None:
        """Return the node that serves ``slot``, as far as is known."""
        moved = self._moved.get(slot)
        if moved is not None or not self._lasts:
            return moved
        at = bisect_left(self._lasts, slot)
        return self._addresses[at] if at < len(self._addresses) else None

    def primaries(self) -> list[Address]:
        return list(dict.fromkeys(self._addresses))

    def shard_of(self, slot: int) -> int | None:
        """Return the slot that identifies the node serving ``slot``; None if the node is unknown.

        Processes with the same map identify a node by the same slot.
        """
        address = self.address_of(slot)
        return self.shards().get(address) if address is not None else None

    def shards(self) -> dict[Address, int]:
        """Return the slot that identifies each node: the last of its first range."""
        pairs = list(zip(self._addresses, self._lasts, strict=True))
        return dict(reversed(pairs))

    def note(self, slot: int, address: Address) -> None:
        """Remember that a slot is served by another node now."""
        self._moved[slot] = address

    def learn(
        self, loop: asyncio.AbstractEventLoop, then: Callable[[BackendError | None], object]
    ) -> None:
        """Ask the cluster again, and call ``then`` in the loop, with the error if it failed."""

        def ask() -> list[tuple[int, Address]]:
            return ask_cluster(self._settings.config, tuple(self.primaries()))

        def answered(ranges: list[tuple[int, Address]] | BackendError) -> None:
            if isinstance(ranges, BackendError):
                then(ranges)
                return
            self._lasts = [last for last, _ in ranges]
            self._addresses = [address for _, address in ranges]
            self._moved = {}
            then(None)

        in_thread(self._endpoint, loop, "cluster", ask, answered)

    def parse_redirection(self, text: str) -> tuple[bool, int, Address]:
        """Parse ``MOVED 42 host:port`` or ``ASK ...``: (for one call only, slot, address)."""
        word, slot, where = text.split()[:3]
        host, _, port = where.rpartition(":")
        address = (host.strip("[]"), int(port))
        return word == "ASK", int(slot), self._endpoint.remap(address)


def ask_cluster(config: RedisConfig, known: tuple[Address, ...] = ()) -> list[tuple[int, Address]]:
    """Return which node serves which hash slots: (last slot, address), in order.

    Raises:
        BackendError: no node answers, or it isn't a cluster.
    """
    endpoint = config.endpoint
    last: BaseException | None = None
    for address in dict.fromkeys((*known, *endpoint.addresses)):
        try:
            handshake = greet(config, address, [["CLUSTER", "SLOTS"]])
            try:
                ranges = handshake.reply()
            finally:
                handshake.sock.close()
        except (OSError, ReplyError) as error:
            last = error
            continue
        if isinstance(ranges, ReplyError):
            said = _diagnosis.said_by(endpoint, ranges)
            raise _diagnosis.Unusable(f"{endpoint} is not a cluster ({said}); use redis:// for it")
        # A node that doesn't know its own name is the one that was asked.
        nodes = [
            (last_slot, endpoint.remap((host.decode(), port)) if host else (address[0], port))
            for _, last_slot, (host, port, *_), *_ in sorted(ranges, key=lambda each: each[0])
        ]
        if nodes:
            return nodes
        last = None
    if isinstance(last, ReplyError):
        raise _diagnosis.refused(endpoint, last, _diagnosis.Unusable)
    raise _diagnosis.unreachable(endpoint, last or OSError("no node serves any slot"))
