"""Faults by name: one small class for each, which says what it does and what it excuses."""

from __future__ import annotations

import contextlib
import signal
import time
from abc import ABC, abstractmethod
from typing import ClassVar

import redis
from tests.redis.faults._proxy import Freezes, GoesSilent, IsSlow, Proxy
from tests.soak._deployments import BehindASentinel, Deployment, OnACluster, OneServer
from tests.soak._objects import FILES, INTERVAL, REDIS, TIERS
from tests.soak._stage import Stage

ON_SERVER = (REDIS, TIERS)
SHORT, LONG = 0.5, INTERVAL + 1  # silence of these lengths costs nothing, or everything

_KEYS = {
    REDIS: ("semaphore", ("main", "max", "waiting", "waiting_heartbeat", "state", "numbers")),
    TIERS: ("tiers", ("state", "holders", "waiters", "queue", "parked", "numbers")),
}


class NamedFault(ABC):
    """Injected now and then, for as long as a soak lasts."""

    deployment: ClassVar[type[Deployment]] = OneServer
    proxy: ClassVar[type[Proxy] | None] = None
    server_options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def inject(self, stage: Stage) -> None:
        """Do it once, and record it."""

    @property
    def name(self) -> str:
        return type(self).__name__


class NothingHappens(NamedFault):
    """The control: what the others are compared with."""

    def inject(self, stage: Stage) -> None:
        time.sleep(SHORT)


# ------------------------------------------------------------------------------ the workers


class WorkerKilled(NamedFault):
    """kill -9; another one takes its place."""

    def inject(self, stage: Stage) -> None:
        worker = stage.workers.pop(stage.dice.randrange(len(stage.workers)))
        pids = (worker.pid,)
        with (
            stage.fault(self.name, "death", within=INTERVAL + 1, pids=pids, objects=ON_SERVER),
            stage.fault(self.name, "death", pids=pids, objects=(FILES,)),
        ):
            worker.kill()
        worker.wait(10)
        stage.start_worker()
        stage.wait_for_workers()


class WorkerStopped(NamedFault):
    """SIGSTOP, and SIGCONT after a while: a short one, or longer than the interval."""

    def inject(self, stage: Stage) -> None:
        stopped = stage.dice.sample(stage.workers, stage.dice.choice((1, 2)))
        with stage.fault(self.name, "stopped", pids=tuple(worker.pid for worker in stopped)):
            for worker in stopped:
                worker.send_signal(signal.SIGSTOP)
            time.sleep(stage.dice.choice((SHORT, LONG)))
            for worker in stopped:
                worker.send_signal(signal.SIGCONT)


class WorkersFork(NamedFault):
    """Each forks a child amid its work."""

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "none"):
            for worker in stage.workers:
                worker.send_signal(signal.SIGUSR1)


# ------------------------------------------------------------------------------- the server


class ServerStopped(NamedFault):
    """SIGSTOP, and SIGCONT after a while: a short one, or longer than the interval."""

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "silence", objects=ON_SERVER):
            stage.server.pause()
            time.sleep(stage.dice.choice((SHORT, LONG)))
            stage.server.resume()


class ServerLosesItsData(NamedFault):
    """Killed, and started with nothing."""

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "amnesia", objects=ON_SERVER):
            stage.server.kill()
            time.sleep(stage.dice.choice((0.0, SHORT)))
            stage.server.start()


class ServerRestarts(NamedFault):
    """Killed, and started with all that it knew."""

    server_options = ("--appendonly", "yes", "--appendfsync", "always")

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "silence", objects=ON_SERVER):
            stage.server.kill()
            time.sleep(stage.dice.choice((0.0, SHORT)))
            stage.server.start()


class ScriptsFlushed(NamedFault):
    """SCRIPT FLUSH, while calls of all scripts are on their way."""

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "none", objects=ON_SERVER), stage.server.client() as client:
            for _ in range(10):
                client.script_flush()
                time.sleep(0.02)


class ServerSlow(NamedFault):
    """Every now and then somebody else's script keeps it busy for a fifth of a second."""

    def inject(self, stage: Stage) -> None:
        busy = (
            "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end"
            " local start = now() while now() < start + 0.2 do end"
        )
        with stage.fault(self.name, "none", objects=ON_SERVER), stage.server.client() as client:
            for _ in range(5):
                client.eval(busy, 0)
                time.sleep(0.05)


class MemoryFull(NamedFault):
    """maxmemory is reached, with noeviction."""

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "trouble", objects=ON_SERVER), stage.server.client() as client:
            client.config_set("maxmemory", 1)
            time.sleep(stage.dice.choice((SHORT, LONG)))
            client.config_set("maxmemory", 0)


# ------------------------------------------------------------------------------------- keys


def _some_key(stage: Stage) -> tuple[str, str]:
    """An object, and one of its keys."""
    name = stage.dice.choice(ON_SERVER)
    family, kinds = _KEYS[name]
    return name, f"adv-sem:{family}_{stage.dice.choice(kinds)}:{name}"


class KeyEvicted(NamedFault):
    """One key is gone, the others are there."""

    def inject(self, stage: Stage) -> None:
        name, key = _some_key(stage)
        within = 1.0
        with (
            stage.fault(f"{self.name} {key}", "amnesia", within=within, objects=(name,)),
            stage.server.client() as client,
        ):
            client.delete(key)


class KeyReplaced(NamedFault):
    """Something else is in the place of one key, until somebody removes it."""

    def inject(self, stage: Stage) -> None:
        name, key = _some_key(stage)
        within = 1.0
        with (
            stage.fault(f"{self.name} {key}", "amnesia", within=within, objects=(name,)),
            stage.server.client() as client,
        ):
            with client.pipeline() as pipe:
                pipe.delete(key)
                pipe.rpush(key, "garbage")
                pipe.pexpire(key, 60_000)
                pipe.execute()
            time.sleep(stage.dice.choice((SHORT, LONG)))
            client.delete(key)


def _write_garbage(client: redis.Redis, key: str) -> None:
    """Other contents of the same type, in a key that lives as long."""
    kind, life = client.type(key), client.pttl(key)
    client.delete(key)
    if kind == "hash":
        client.hset(key, mapping={"garbage": "x", "1:": "y", ".values": "z"})
    elif kind == "string":
        client.set(key, "garbage")
    else:
        client.zadd(key, {"garbage": 1, "more of it": 2, "0:": 0})
    client.pexpire(key, max(life, 20_000))


def _drop_half(client: redis.Redis, key: str) -> None:
    """Every other entry."""
    kind = client.type(key)
    if kind == "hash" and (fields := sorted(client.hkeys(key))[::2]):
        client.hdel(key, *fields)
    elif kind == "zset" and (members := client.zrange(key, 0, -1)[::2]):
        client.zrem(key, *members)


class KeyDamaged(NamedFault):
    """The contents of one key are replaced by others of its type, or half of them are gone."""

    def inject(self, stage: Stage) -> None:
        name, key = _some_key(stage)
        damage = stage.dice.choice((_write_garbage, _drop_half))
        within = 1.0
        with (
            stage.fault(f"{self.name} {key}", "amnesia", within=within, objects=(name,)),
            stage.server.client(decode_responses=True) as client,
        ):
            damage(client, key)


# ------------------------------------------------------------------------------ connections


class ClientsKilled(NamedFault):
    """CLIENT KILL of every connection but the recorder's."""

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "none", objects=ON_SERVER), stage.server.client() as client:
            for other in client.client_list():
                if "O" not in other["flags"]:
                    client.client_kill_filter(_id=other["id"])


class ConnectionsDropped(NamedFault):
    """All are cut amid whatever they do."""

    proxy = Proxy

    def inject(self, stage: Stage) -> None:
        with stage.fault(self.name, "none", objects=ON_SERVER):
            stage.proxy.drop()


class ConnectionsVanish(NamedFault):
    """The other end is gone without a word; new connections work."""

    proxy = GoesSilent

    def inject(self, stage: Stage) -> None:
        assert isinstance(stage.proxy, GoesSilent)
        # Whoever waits, and has nothing else under way, notices it by the next heartbeat.
        within = 1.0
        with stage.fault(self.name, "silence", within=within, objects=ON_SERVER):
            stage.proxy.vanish()
        time.sleep(2)  # a worker that was hit amid its reconnection is hit again


class ConnectionsFreeze(NamedFault):
    """Replies, or everything, wait on their way, and arrive later in their order."""

    proxy = Freezes

    def inject(self, stage: Stage) -> None:
        assert isinstance(stage.proxy, Freezes)
        with stage.fault(self.name, "silence", objects=ON_SERVER):
            stage.dice.choice((stage.proxy.freeze, stage.proxy.freeze_replies))()
            time.sleep(stage.dice.choice((SHORT, LONG)))
            stage.proxy.thaw()


class _IsSometimesSlow(IsSlow):
    delay = 0.0


class RepliesDelayed(NamedFault):
    """Each takes a while on its way."""

    proxy = _IsSometimesSlow

    def inject(self, stage: Stage) -> None:
        assert isinstance(stage.proxy, _IsSometimesSlow)
        with stage.fault(self.name, "none", objects=ON_SERVER):
            stage.proxy.delay = stage.dice.choice((0.05, 0.3))
            time.sleep(3)
            stage.proxy.delay = 0.0


# --------------------------------------------------------------------------- several servers


class OldPrimaryResumes(NamedFault):
    """The primary is stopped or killed, a replica takes over, and then the old one is back.

    It grants until the sentinels have made it a replica.
    """

    deployment = BehindASentinel

    def inject(self, stage: Stage) -> None:
        fleet = stage.deployment
        assert isinstance(fleet, BehindASentinel)
        old = fleet.primary()
        stopped = stage.dice.random() < 0.7
        with stage.fault(self.name, "amnesia", objects=ON_SERVER):
            old.pause() if stopped else old.kill()
            fleet.wait_for_failover(old)
            time.sleep(stage.dice.choice((0.0, SHORT)))
            old.resume() if stopped else old.start()
        fleet.wait_for_replica(old)


class OldPrimaryResumesWithoutReplicas(OldPrimaryResumes):
    """As before, but a primary without a replica takes no writes."""

    server_options = ("--min-replicas-to-write", "1")


class SlotMoves(NamedFault):
    """The hash slot of a name moves to another node of a cluster, key by key."""

    deployment = OnACluster

    def inject(self, stage: Stage) -> None:
        cluster = stage.deployment
        assert isinstance(cluster, OnACluster)
        name = stage.dice.choice(ON_SERVER)
        with contextlib.ExitStack() as stack, stage.fault(self.name, "none", objects=(name,)):
            move = cluster.move(name, stack)
            move.begin()
            time.sleep(stage.dice.choice((0.0, 0.05, 0.2)))
            move.finish()


FAULTS: tuple[type[NamedFault], ...] = (
    *(NothingHappens, WorkerKilled, WorkerStopped, WorkersFork),
    *(ServerStopped, ServerLosesItsData, ServerRestarts, ScriptsFlushed, ServerSlow, MemoryFull),
    *(KeyEvicted, KeyReplaced, KeyDamaged),
    *(OldPrimaryResumes, OldPrimaryResumesWithoutReplicas, SlotMoves),
    *(ClientsKilled, ConnectionsDropped, ConnectionsVanish, ConnectionsFreeze, RepliesDelayed),
)
