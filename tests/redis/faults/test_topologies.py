"""A Redis Cluster of three nodes, and a primary with a replica that a sentinel fails over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from tests.redis._inside import held_back, record_of, shared_of
from tests.redis._keys import SemaphoreKeys
from tests.redis._server import Server, until
from tests.redis.faults._proxy import GoesSilent
from tests.redis.test_semaphore import in_line

from slotwise import Tier, Tiers
from slotwise._core.paths import TierSpec
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._backend import RedisBackend
from slotwise.redis._survey import Contents, survey_sync

SLOTS = 16384


class ClusterNode(Server):
    def configuration(self) -> list[str]:
        return [
            *super().configuration(),
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"),
            *("--repl-diskless-sync-delay", "0"),
        ]


class Sentinel(Server):
    """A redis-server that watches another."""

    def __init__(self, folder: Path, primary: Server, *more: str) -> None:
        super().__init__(folder)
        self._file = folder / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\nprotected-mode no\n"
            f"sentinel monitor fleet 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds fleet 500\n"
            f"sentinel failover-timeout fleet 4000\n" + "".join(f"{line}\n" for line in more)
        )

    def configuration(self) -> list[str]:
        return [str(self._file), "--sentinel"]


def form_cluster(folder: Path, stack: contextlib.ExitStack, *, replicas: bool) -> list[Server]:
    """Three nodes that share the hash slots, and behind them a replica of each if asked for."""
    count = 6 if replicas else 3
    nodes = [stack.enter_context(ClusterNode(folder / str(n))) for n in range(count)]
    clients = [stack.enter_context(node.client()) for node in nodes]
    bounds = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
    for n, client in enumerate(clients):
        if n < 3:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(bounds[n], bounds[n + 1]))
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
    wait_for(lambda: all(_knows(client, len(nodes)) for client in clients), "the cluster")
    for replica, primary in zip(clients[3:], clients, strict=False):
        name = primary.execute_command("CLUSTER", "MYID").decode()
        wait_for(lambda r=replica, n=name: _knows_of(r, n), "a primary that is known")
        replica.execute_command("CLUSTER", "REPLICATE", name)
        wait_for(
            lambda r=replica: r.info("replication").get("master_link_status") == "up", "a replica"
        )
    return nodes


def _knows(client: redis.Redis, nodes: int) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:%d\r" % nodes in info


def _knows_of(client: redis.Redis, node: str) -> bool:
    return node.encode() in client.execute_command("CLUSTER", "NODES")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as stack:
        yield form_cluster(tmp_path_factory.mktemp("cluster"), stack, replicas=False)


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
    config = RedisConfig(cluster_url(cluster[:1]), namespace="everywhere")
    await use(config, 12)
    written = []
    for node in cluster:
        with node.client(decode_responses=True) as client:
            found = client.keys("everywhere:*")  # other tests use this cluster, too
            # Names are noted on each node.
            keys = [key for key in found if not key.startswith("everywhere:names:")]
            written.append(len(keys))
            assert [key for key in keys if "{s" not in key] == []
    assert all(written), "each node has some"


@pytest.mark.parametrize("namespace", ["looks", "looks{tag}"])
async def test_all_names_on_a_cluster_are_found_after_their_first_use_by_no_scan(
    cluster: list[Server], namespace: str
) -> None:
    config = RedisConfig(cluster_url(cluster), namespace=namespace)
    assert await asyncio.to_thread(survey_sync, config) == Contents()
    semaphores = [RedisSemaphore(2, name=f"n{n}", config=config) for n in range(12)]
    held = [await semaphore.acquire() for semaphore in semaphores]
    tiers = Tiers(Tier("tenant", 1, keyed=True), name="model", url=config)
    path = await tiers.acquire(tenant="acme")
    await RedisSemaphore(1, name="shut", config=config).close_everywhere("moved")

    def scans() -> list[int]:
        stats = [node.client().info("commandstats") for node in cluster]
        return [each.get("cmdstat_scan", {}).get("calls", 0) for each in stats]

    before = scans()
    found = await asyncio.to_thread(survey_sync, config)
    assert found.errors == []
    assert found.semaphores.keys() == {*(f"n{n}" for n in range(12)), "shut"}
    assert [found.semaphores[f"n{n}"].acquired_slots for n in range(12)] == [1] * 12
    assert found.semaphores["shut"].reason == "moved"
    assert found.tiers["model"].stats == await tiers.stats()
    assert scans() == before
    for semaphore, each in zip(semaphores, held, strict=True):
        await semaphore.release(each)
    await tiers.release(path)


async def test_paths_live_on_one_shard_of_a_cluster(cluster: list[Server]) -> None:
    config = RedisConfig(cluster_url(cluster[:1]), namespace="paths")
    tiers = (TierSpec("user", 2, keyed=True), TierSpec("all", 4, keyed=False))
    inside = 0

    async def work(n: int) -> None:
        nonlocal inside
        paths = RedisBackend(tiers, name=f"t{n % 6}", config=config)
        acquired = await paths.acquire((f"{{{n % 5}}}", None), timeout=20)
        inside += 1
        await asyncio.sleep(0.002)
        await paths.release(acquired.acquisition_id)

    await asyncio.wait_for(asyncio.gather(*(work(n) for n in range(60))), 30)
    assert inside == 60
    shards: dict[str, set[int]] = {}
    for node in cluster:
        with node.client(decode_responses=True) as client:
            for key in client.scan_iter("paths:tiers_*"):
                shards.setdefault(key.rpartition(":")[2], set()).add(node.port)
    assert set(shards) == {f"{{t{n}}}" for n in range(6)}
    assert all(len(nodes) == 1 for nodes in shards.values())
    assert len(set.union(*shards.values())) > 1


async def test_the_addresses_of_a_cluster_are_remapped_as_by_its_client(
    cluster: list[Server],
) -> None:
    client = redis.cluster.RedisCluster(
        host="127.0.0.1",
        port=cluster[0].port,
        address_remap=lambda address: ("localhost", address[1]),
    )
    config = RedisConfig.from_client(client, namespace="remapped")
    await use(config, 3)
    client.close()
    announced = shared_of(RedisSemaphore(name="s0", value=2, config=config)).cluster
    assert announced is not None
    assert set(announced.primaries()) == {("localhost", node.port) for node in cluster}
    assert announced.parse_redirection("MOVED 7 10.0.0.1:99") == (False, 7, ("localhost", 99))


@pytest.mark.soak
@pytest.mark.usefixtures("rare_heartbeats")
async def test_a_waiter_notices_that_the_connections_to_a_cluster_are_dead(
    cluster: list[Server],
) -> None:
    """Each node is asked over a new connection: the others tell nothing about it."""
    times = {"heartbeat_max_interval": 3000.0, "name": "s"}
    direct = RedisConfig(cluster_url(cluster), namespace="vanish")
    with contextlib.ExitStack() as stack:
        proxies = {node.port: stack.enter_context(GoesSilent(node.port)) for node in cluster}
        endpoint = replace(
            direct.endpoint, address_remap=lambda address: ("127.0.0.1", proxies[address[1]].port)
        )
        config = RedisConfig(endpoint=endpoint, namespace="vanish", reply_timeout=600)
        others = RedisSemaphore(1, config=direct, **times)  # type: ignore[arg-type]
        semaphore = RedisSemaphore(1, config=config, **times)  # type: ignore[arg-type]
        held = await others.acquire()
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(others, 1)
        for proxy in proxies.values():
            proxy.vanish()
        assert await others.release(held)
        assert await semaphore.release(await asyncio.wait_for(waiting, 60))


async def test_a_credential_provider_is_asked_for_every_node_of_a_cluster(
    cluster: list[Server],
) -> None:
    class Tokens(redis.CredentialProvider):
        asked = 0

        def get_credentials(self) -> tuple[str, str]:
            self.asked += 1
            return "tokens", "right"

    with contextlib.ExitStack() as stack:
        for node in cluster:
            admin = stack.enter_context(node.client())
            rights = ["on", ">right", "~*", "&*", "+@all"]
            admin.execute_command("ACL", "SETUSER", "tokens", *rights)
            stack.callback(admin.execute_command, "ACL", "DELUSER", "tokens")
        tokens = Tokens()
        config = RedisConfig(
            cluster_url(cluster[:1]), namespace="tokens", credential_provider=tokens
        )
        await use(config, 12)
        assert tokens.asked > len(cluster)
        for node in cluster:
            with node.client() as client:
                assert "tokens" in {each["user"] for each in client.client_list()}


class Move:
    """The hash slot of a semaphore on its way from one node of a cluster to the next."""

    def __init__(self, cluster: list[Server], slot: int, stack: contextlib.ExitStack) -> None:
        self._slot = slot
        self._clients = [stack.enter_context(node.client()) for node in cluster]
        counts = [c.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) for c in self._clients]
        old = counts.index(max(counts))
        new = (old + 1) % 3
        self.old, self.new = self._clients[old], self._clients[new]
        self._new_port = cluster[new].port
        self._new_id = self.new.execute_command("CLUSTER", "MYID").decode()

    def begin(self) -> None:
        old_id = self.old.execute_command("CLUSTER", "MYID").decode()
        self.new.execute_command("CLUSTER", "SETSLOT", self._slot, "IMPORTING", old_id)
        self.old.execute_command("CLUSTER", "SETSLOT", self._slot, "MIGRATING", self._new_id)
        self.move_keys()

    def move_keys(self) -> None:
        for key in self.old.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, 100):
            self.old.execute_command("MIGRATE", "127.0.0.1", self._new_port, key, 0, 5000)

    def finish(self) -> None:
        self.move_keys()  # what was written since
        others = [each for each in self._clients if each is not self.new]
        for client in (self.new, *others):
            client.execute_command("CLUSTER", "SETSLOT", self._slot, "NODE", self._new_id)


async def test_a_slot_that_moves_is_followed(cluster: list[Server]) -> None:
    config = RedisConfig(cluster_url(cluster), namespace="moves", attempts=60)
    semaphore = RedisSemaphore(name="m", value=1, config=config)
    async with semaphore:
        pass
    slot = record_of(semaphore).keys.slot
    assert slot is not None
    with contextlib.ExitStack() as stack:
        move = Move(cluster, slot, stack)
        move.begin()
        # Told to ASK the new one, which says TRYAGAIN until it has the slot for good.
        early = asyncio.create_task(semaphore.acquire())
        await until(lambda: held_back(semaphore), "a refusal")
        move.finish()
        await semaphore.release(await asyncio.wait_for(early, 20))
        async with semaphore:  # told that it MOVED
            assert move.new.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) > 0


@pytest.mark.soak
async def test_nobody_passes_those_who_were_refused_while_their_slot_moved(
    cluster: list[Server],
) -> None:
    config = RedisConfig(cluster_url(cluster), namespace="order", attempts=60)
    semaphore = RedisSemaphore(name="o", value=1, config=config)
    held = await semaphore.acquire()
    slot = record_of(semaphore).keys.slot
    assert slot is not None
    with contextlib.ExitStack() as stack:
        move = Move(cluster, slot, stack)
        move.begin()
        tasks = []
        for n in range(4):
            tasks.append(asyncio.create_task(semaphore.acquire(label=str(n))))
            await until(lambda n=n: len(held_back(semaphore).get(slot, ())) > n, "a refusal")
        move.finish()
        tasks += [asyncio.create_task(semaphore.acquire(label=str(n))) for n in range(4, 8)]
        await in_line(semaphore, 8)
        assert [each.label for each in await semaphore.waiters()] == list("01234567")
    await semaphore.release(held)
    for task in tasks:
        await semaphore.release(await asyncio.wait_for(task, 20))


@pytest.mark.soak
async def test_a_node_that_is_gone_costs_no_holder_on_another_node_its_slot(
    cluster: list[Server],
) -> None:
    config = RedisConfig(cluster_url(cluster), namespace="gone")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in cluster]
        for client in clients:
            # The others go on meanwhile, and have nothing to forgive afterwards.
            client.config_set("cluster-node-timeout", 60_000)
            stack.callback(client.config_set, "cluster-node-timeout", 2000)
        held = {}
        for n in itertools.count():
            node = 3 * (SemaphoreKeys(config.namespace, f"g{n}", cluster=True).slot or 0) // SLOTS
            if node in (0, 1) and node not in held:
                semaphore = RedisSemaphore(
                    1,
                    name=f"g{n}",
                    heartbeat_max_interval=60 if node else 1.5,
                    ping_interval=0.3,
                    config=config,
                )
                held[node] = (semaphore, await semaphore.acquire())
            if len(held) == 2:
                break
        _, lost = held[0]
        semaphore, kept = held[1]
        main = record_of(semaphore).keys.all[1]

        def deadline() -> float:
            return clients[1].zscore(main, kept.acquisition_id) or 0.0

        cluster[0].pause()
        stack.callback(cluster[0].resume)
        await asyncio.wait_for(lost.lost, 30)
        last = deadline()
        await until(lambda: kept.lost.is_set() or deadline() > last + 0.6, "further heartbeats")
        assert not kept.lost.is_set()
        assert await semaphore.release(kept) is True


@pytest.mark.soak
async def test_a_time_out_holds_while_a_slot_is_in_nobodys_hands(cluster: list[Server]) -> None:
    config = RedisConfig(
        cluster_url(cluster), namespace="limbo", attempts=10_000, cleanup_timeout=3600
    )
    semaphore = RedisSemaphore(name="l", value=1, config=config)
    async with semaphore:
        pass
    slot = record_of(semaphore).keys.slot
    assert slot is not None
    with contextlib.ExitStack() as stack:
        move = Move(cluster, slot, stack)
        move.begin()
        stack.callback(move.finish)
        first = asyncio.create_task(semaphore.acquire())
        await until(lambda: held_back(semaphore), "a refusal")
        with pytest.raises(BackendError, match="did not answer"):
            await asyncio.wait_for(semaphore.acquire(timeout=0.05), 30)
    await semaphore.release(await asyncio.wait_for(first, 30))


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
            url = f"redis+sentinel://127.0.0.1:{sentinel.port}/fleet"
            config = RedisConfig(url, attempts=60, cleanup_timeout=40)
            for kind in (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel):
                manager = kind([("127.0.0.1", sentinel.port)])
                by_client = RedisConfig.from_client(manager.master_for("fleet"))
                assert str(by_client.endpoint) == str(config.endpoint)
                one = RedisSemaphore(name="by client", value=1, config=by_client)
                assert await one.release(await one.acquire())

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


def subscribers(sentinel: redis.Redis) -> list[object]:
    return [each for each in sentinel.client_list() if int(each["sub"]) + int(each["psub"])]


async def test_sentinels_have_credentials_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    primary = Server(tmp_path / "a")
    sentinel = Sentinel(tmp_path / "b", primary, "requirepass s3cr3t")
    sentinel.password = "s3cr3t"
    with primary, sentinel:
        address = ("127.0.0.1", sentinel.port)
        for kind in (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel):
            manager = kind([address], sentinel_kwargs={"password": "s3cr3t"}, client_name="mine")
            config = RedisConfig.from_client(manager.master_for("fleet"))
            semaphore = RedisSemaphore(name="s", value=1, config=config)
            held = await semaphore.acquire()
            with sentinel.client() as asking:
                await until(lambda a=asking: subscribers(a), "a subscription")
            assert await semaphore.release(held)
            assert "s3cr3t" in config.endpoint.secrets
        without = RedisConfig(f"redis+sentinel://127.0.0.1:{sentinel.port}/fleet", attempts=1)
        with pytest.raises(BackendError, match=r"known to no sentinel that answers.*NOAUTH"):
            await RedisSemaphore(name="s", value=1, config=without).acquire()


@pytest.mark.soak
async def test_a_replica_that_takes_over_is_followed(tmp_path: Path) -> None:
    """The node of a semaphore dies with a holder and a line; its replica knows them both."""
    with contextlib.ExitStack() as stack:
        nodes = form_cluster(tmp_path, stack, replicas=True)
        config = RedisConfig(cluster_url(nodes), attempts=100, cleanup_timeout=60)
        semaphore = RedisSemaphore(name="s", value=1, heartbeat_max_interval=60, config=config)
        held = await semaphore.acquire()
        order: list[int] = []
        inside = 0

        async def work(n: int) -> None:
            nonlocal inside
            async with semaphore:
                inside += 1
                assert inside == 1
                order.append(n)
                await asyncio.sleep(0.01)
                inside -= 1

        tasks = []
        for n in range(5):
            tasks.append(asyncio.create_task(work(n)))
            await in_line(semaphore, n + 1)
        slot = record_of(semaphore).keys.slot or 0
        primary = next(n for n in range(3) if slot < (n + 1) * SLOTS // 3)
        with nodes[primary + 3].client() as replica:
            replica.execute_command("READONLY")
            await until(lambda: replica.zcard("adv-sem:semaphore_waiting:{s}") == 5, "replication")
        await asyncio.to_thread(nodes[primary].kill)
        tasks += [asyncio.create_task(work(n)) for n in range(5, 10)]  # asked while nobody answers
        assert await asyncio.wait_for(semaphore.release(held), 60) is True
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert order == list(range(10))
        assert not held.lost.is_set()
        with nodes[primary + 3].client() as client:
            assert client.info("replication")["role"] == "master"
            assert client.zcard("adv-sem:semaphore_main:{s}") == 0
