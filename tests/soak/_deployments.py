"""Where the limits of a soak are kept: on one server, behind sentinels, or on a cluster."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from pathlib import Path

from redis.crc import key_slot
from tests.redis._server import Server
from tests.redis.faults.test_topologies import (
    Move,
    Sentinel,
    cluster_url,
    form_cluster,
    wait_for,
)


class Deployment(ABC):
    """Servers that run while the block lasts."""

    servers: list[Server]
    url: str

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self._folder = folder
        self._options = options
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Deployment:
        try:
            self._start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stack.close()

    @abstractmethod
    def _start(self) -> None:
        """Start the servers, and set ``servers`` and ``url``."""

    def primaries(self) -> list[Server]:
        """Those that take writes."""
        return self.servers


class OneServer(Deployment):
    """A plain server."""

    def _start(self) -> None:
        server = self.stack.enter_context(Server(self._folder, *self._options))
        self.servers, self.url = [server], server.url


class BehindASentinel(Deployment):
    """A primary, two replicas, and a sentinel that fails over within a second."""

    def _start(self) -> None:
        options = ("--repl-diskless-sync-delay", "0", *self._options)
        first = self.stack.enter_context(Server(self._folder / "a", *options))
        of = ("--replicaof", "127.0.0.1", str(first.port))
        others = [
            self.stack.enter_context(Server(self._folder / name, *options, *of)) for name in "bc"
        ]
        self.servers = [first, *others]
        for other in others:
            self.wait_for_replica(other)
        (self._folder / "s").mkdir()
        sentinel = self.stack.enter_context(Sentinel(self._folder / "s", first))
        self._sentinel = self.stack.enter_context(sentinel.client(decode_responses=True))
        wait_for(lambda: len(self._ask("REPLICAS")) == 2, "a sentinel that knows the replicas")
        self.url = f"redis+sentinel://127.0.0.1:{sentinel.port}/fleet"

    def primaries(self) -> list[Server]:
        return [self.primary()]

    def primary(self) -> Server:
        """The primary by the word of the sentinel."""
        port = int(self._ask("GET-MASTER-ADDR-BY-NAME")[1])
        return next(each for each in self.servers if each.port == port)

    def wait_for_failover(self, old: Server) -> None:
        wait_for(lambda: self.primary() is not old, "a failover")

    def wait_for_replica(self, old: Server) -> None:
        """Until a server, perhaps the old primary, is a replica."""
        wait_for(lambda: self._follows(old), "a replica")

    def _ask(self, what: str) -> list[str]:
        reply: list[str] = self._sentinel.execute_command("SENTINEL", what, "fleet")
        return reply

    @staticmethod
    def _follows(server: Server) -> bool:
        with server.client() as client:
            replication = client.info("replication")
        return replication.get("master_link_status") == "up"


class OnACluster(Deployment):
    """Three nodes, without replicas."""

    def _start(self) -> None:
        self.servers = form_cluster(self._folder, self.stack, replicas=False)
        self.url = cluster_url(self.servers)

    def move(self, name: str, stack: contextlib.ExitStack) -> Move:
        """Move the keys of one name to another node."""
        return Move(self.servers, key_slot(name.encode()), stack)
