"""A Redis Cluster of three nodes, and a primary with a replica that a sentinel fails over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from tests.redis._server import Server, free_port, until
from tests.redis.test_semaphore import in_line

from slotwise.redis import RedisConfig, RedisSemaphore

SLOTS = 16384


class ClusterNode(Server):
    def configuration(self) -> list[str]:
        return [*super().configuration(), "--cluster-enabled", "yes"]


class Sentinel(Server):
    """A redis-server that watches another."""

    def __init__(self, folder: Path, primary: Server) -> None:
        super().__init__(folder)
        self._file = folder / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\nprotected-mode no\n"
            f"sentinel monitor fleet 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds fleet 500\n"
            f"sentinel failover-timeout fleet 4000\n"
        )

    def configuration(self) -> list[str]:
        return [str(self._file), "--sentinel"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("cluster")
    with contextlib.ExitStack() as stack:
        nodes: list[Server] = []
        for n in range(3):
            port = free_port()
            while port > 55000:  # the cluster's own port is 10000 higher
                port = free_port()
            node = ClusterNode(folder / str(n), port=port)
            nodes.append(stack.enter_context(node))
        bounds = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
        for n, node in enumerate(nodes):
            with node.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(bounds[n], bounds[n + 1]))
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        deadline = time.monotonic() + 30
        for node in nodes:
            with node.client() as client:
                while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                    assert time.monotonic() < deadline, "the cluster never formed"
                    time.sleep(0.05)
        yield nodes


def cluster_url(nodes: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


async def use(config: RedisConfig, names: int) -> None:
    """Semaphores on all nodes, each with a line."""
    inside = dict.fromkeys(range(names), 0)

    async def work(n: int) -> None:
        semaphore = RedisSemaphore(name=f"s{n}", value=2, config=config)
        async with semaphore.cm(label="cluster"):
            inside[n] += 1
            assert inside[n] <= 2
            await asyncio.sleep(0.002)
            inside[n] -= 1

    jobs = [work(n) for n in range(names) for _ in range(6)]
    await asyncio.wait_for(asyncio.gather(*jobs), 30)


async def test_semaphores_live_on_all_nodes_of_a_cluster(cluster: list[Server]) -> None:
    config = RedisConfig(cluster_url(cluster[:1]))
    await use(config, 12)
    written = []
    for node in cluster:
        with node.client(decode_responses=True) as client:
            keys = client.keys()
            written.append(len(keys))
            assert all("{s" in key for key in keys)
    assert all(written), "each node has some"


async def test_statistics_and_sync_calls_on_a_cluster(cluster: list[Server]) -> None:
    config = RedisConfig(cluster_url(cluster), namespace="stats")
    held = [await RedisSemaphore(name=f"n{n}", value=1, config=config).acquire() for n in range(5)]
    stats = await RedisSemaphore.get_acquired_stats(config=config)
    assert set(stats) == {f"n{n}" for n in range(5)}
    for n, acquired in enumerate(held):
        semaphore = RedisSemaphore(name=f"n{n}", value=1, config=config)
        waiting = asyncio.create_task(asyncio.to_thread(semaphore.acquire_sync))
        await in_line(semaphore, 1)
        assert await semaphore.release(acquired)
        assert await semaphore.release(await waiting)


async def test_settings_are_taken_from_cluster_clients(cluster: list[Server]) -> None:
    port = cluster[0].port
    sync_client = redis.cluster.RedisCluster(host="127.0.0.1", port=port)
    await use(RedisConfig.from_client(sync_client, namespace="a"), 3)
    sync_client.close()
    async_client = redis.asyncio.cluster.RedisCluster(host="127.0.0.1", port=port)
    await use(RedisConfig.from_client(async_client, namespace="b"), 3)
    await async_client.aclose()


async def test_a_slot_that_moves_is_followed(cluster: list[Server]) -> None:
    config = RedisConfig(cluster_url(cluster), namespace="moves")
    semaphore = RedisSemaphore(name="m", value=1, config=config)
    async with semaphore:
        pass
    slot = semaphore._room.keys.slot
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in cluster]
        ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
        counts = [c.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) for c in clients]
        old = counts.index(max(counts))
        new = (old + 1) % 3
        clients[new].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[old])
        clients[old].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[new])
        for key in clients[old].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            clients[old].execute_command("MIGRATE", "127.0.0.1", cluster[new].port, key, 0, 5000)
        # Told to ASK the new one, which says TRYAGAIN until it has the slot for good.
        early = asyncio.create_task(semaphore.acquire())
        await asyncio.sleep(0.1)
        for client in (clients[new], clients[old], clients[3 - new - old]):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[new])
        await semaphore.release(await asyncio.wait_for(early, 20))
        async with semaphore:  # told that it MOVED
            assert clients[new].execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) > 0


async def test_a_failover_by_sentinel_is_followed(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "a", "--repl-diskless-sync-delay", "0") as primary,
        Server(tmp_path / "b", "--replicaof", "127.0.0.1", str(primary.port)) as replica,
    ):
        with replica.client() as client:
            await until(
                lambda: client.info("replication")["master_link_status"] == "up", "a replica"
            )
        (tmp_path / "c").mkdir()
        with Sentinel(tmp_path / "c", primary) as sentinel:
            with sentinel.client(decode_responses=True) as client:
                await until(
                    lambda: client.execute_command("SENTINEL", "REPLICAS", "fleet"),
                    "a sentinel that knows the replica",
                )
            config = RedisConfig(f"redis+sentinel://127.0.0.1:{sentinel.port}/fleet", attempts=60)
            manager = redis.sentinel.Sentinel([("127.0.0.1", sentinel.port)])
            assert RedisConfig.from_client(manager.master_for("fleet")).endpoint == config.endpoint
            async_manager = redis.asyncio.sentinel.Sentinel([("127.0.0.1", sentinel.port)])
            by_async = RedisConfig.from_client(async_manager.master_for("fleet"))
            assert by_async.endpoint == config.endpoint

            semaphore = RedisSemaphore(name="s", value=1, heartbeat_max_interval=20, config=config)
            held = await semaphore.acquire()
            waiting = asyncio.create_task(semaphore.acquire())
            await in_line(semaphore, 1)
            with replica.client() as client:
                await until(lambda: client.zcard("adv-sem:semaphore_waiting:s"), "replication")
            await asyncio.to_thread(primary.kill)
            assert await asyncio.wait_for(semaphore.release(held), 40) is True
            acquired = await asyncio.wait_for(waiting, 40)
            assert acquired.slot_number == 1
            with replica.client() as client:
                assert client.zcard("adv-sem:semaphore_main:s") == 1
            assert await semaphore.release(acquired) is True
