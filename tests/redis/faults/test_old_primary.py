"""An old primary that was stopped goes on when sentinels have named another: nobody believes it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.redis._client import Worker
from tests.redis._inside import loop_of, shared_of
from tests.redis._server import Server, until
from tests.redis.faults.test_topologies import Sentinel

from slotwise._cli.doctor import Check
from slotwise._cli.doctor_redis import examine
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._endpoint import Address
from slotwise.redis._net.preparation import LATE
from slotwise.redis._primary import PrimaryWatch

pytestmark = pytest.mark.soak

# Longer than a failover takes on a busy machine; and one that ends during it.
PATIENT, BRIEF = 30.0, 4.0
MAIN, WAITING = "adv-sem:semaphore_main:s", "adv-sem:semaphore_waiting:s"


class Fleet:
    """A primary, its replica, and a sentinel that fails over within a second."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.primary = stack.enter_context(
            Server(folder / "a", "--repl-diskless-sync-delay", "0", "--repl-timeout", "60")
        )
        of = ("--replicaof", "127.0.0.1", str(self.primary.port))
        self.replica = stack.enter_context(Server(folder / "b", *of))
        self.at_replica = stack.enter_context(self.replica.client(decode_responses=True))
        (folder / "c").mkdir()
        self.sentinel = stack.enter_context(Sentinel(folder / "c", self.primary))
        self._at_sentinel = stack.enter_context(self.sentinel.client(decode_responses=True))
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/fleet"
        self._options: dict[str, Any] = {"name": "s", "value": 1, "ping_interval": 0.5}

    async def is_ready(self) -> Fleet:
        await until(
            lambda: self.at_replica.info("replication")["master_link_status"] == "up", "a replica"
        )
        await until(
            lambda: self._at_sentinel.execute_command("SENTINEL", "REPLICAS", "fleet"),
            "a sentinel that knows the replica",
        )
        return self

    def semaphore(self, interval: float = PATIENT) -> RedisSemaphore:
        self._options["heartbeat_max_interval"] = interval
        return RedisSemaphore(config=RedisConfig(self.url, attempts=60), **self._options)

    def worker(self) -> Worker:
        return Worker(config={"url": self.url, "attempts": 60}, **self._options)

    def never_fails_over(self) -> None:
        """However long the primary is silent."""
        self._at_sentinel.execute_command(
            "SENTINEL", "SET", "fleet", "down-after-milliseconds", 600_000
        )

    async def fails_over(self) -> None:
        """Stop the primary, until the replica has taken over."""
        self.primary.pause()
        await until(lambda: self.at_replica.info("replication")["role"] == "master", "a failover")
        await until(lambda: self._named() == self.replica.port, "a sentinel that says so")

    def _named(self) -> int:
        reply = self._at_sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "fleet")
        return int(reply[1])


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    with contextlib.ExitStack() as stack:
        yield await Fleet(tmp_path, stack).is_ready()


@pytest.fixture(params=["told", pytest.param("not told", marks=pytest.mark.soak)])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a sentinel tells of the new primary; else a late reply has to do."""
    if request.param == "not told":
        monkeypatch.setattr(PrimaryWatch, "refresh", lambda self, *, wanted: None)


def heartbeat_is_late(semaphore: RedisSemaphore, first: Address) -> bool:
    """Whether one has been under way for longer than replies take, or over a new connection."""
    process = shared_of(semaphore)
    loop = loop_of(process.heartbeat_thread)
    reconnector = process._clients[loop].reconnector_to(None)
    connection = reconnector.connection
    silent = connection is not None and connection.silence() > LATE
    return connection is None or silent or connection.address != first


async def test_a_holder_goes_with_the_new_primary_when_the_old_one_resumes(fleet: Fleet) -> None:
    semaphore = fleet.semaphore()
    held = await semaphore.acquire()
    await until(lambda: fleet.at_replica.zcard(MAIN) == 1, "replication")
    await fleet.fails_over()
    fleet.primary.resume()

    def deadline() -> float:
        return fleet.at_replica.zscore(MAIN, held.acquisition_id) or 0.0

    before = deadline()
    with fleet.worker() as newcomer:  # goes where the sentinel says
        newcomer.tell("acquire")
        await until(lambda: fleet.at_replica.zcard(WAITING) == 1, "a newcomer in line")
        await until(lambda: deadline() > before, "heartbeats for the new primary")
        assert newcomer.says_nothing()
        assert not held.lost.is_set()
        assert await semaphore.release(held)
        assert (await asyncio.to_thread(newcomer.hears)).startswith("acquired 1")


async def test_a_release_that_was_lost_with_the_old_primary_is_repeated_on_the_new_one(
    fleet: Fleet,
) -> None:
    semaphore = fleet.semaphore(interval=600)
    another = RedisSemaphore(1, name="another", config=RedisConfig(fleet.url, attempts=60))
    also_held = await another.acquire()  # who holds nothing doesn't follow the primary
    held = await semaphore.acquire()
    await until(lambda: fleet.at_replica.zcard(MAIN) == 1, "replication")
    fleet.at_replica.execute_command("REPLICAOF", "NO", "ONE")
    assert await semaphore.release(held)
    assert fleet.at_replica.zcard(MAIN) == 1
    await fleet.fails_over()
    fleet.primary.resume()
    await until(lambda: fleet.at_replica.zcard(MAIN) == 0, "the same release")
    await another.release(also_held)


@pytest.mark.usefixtures("told")
async def test_a_heartbeat_that_the_old_primary_answers_late_keeps_nobody_alive(
    fleet: Fleet,
) -> None:
    semaphore, old = fleet.semaphore(BRIEF), ("127.0.0.1", fleet.primary.port)
    held = await semaphore.acquire()
    await until(lambda: fleet.at_replica.zcard(MAIN) == 1, "replication")
    await fleet.fails_over()
    await until(lambda: heartbeat_is_late(semaphore, old), "a heartbeat that nobody answers")
    fleet.primary.resume()
    with fleet.worker() as newcomer:
        newcomer.tell("acquire")

        def is_at_new_primary() -> bool:
            return (fleet.at_replica.zscore(MAIN, held.acquisition_id) or 0.0) > renewed

        renewed = time.time() + BRIEF / 2
        await until(lambda: is_at_new_primary() or not newcomer.says_nothing(), "one of them")
        if not newcomer.says_nothing():
            await until(held.lost.is_set, "that the other knows it", within=2)
        await semaphore.release(held)
        assert (await asyncio.to_thread(newcomer.hears)).startswith("acquired 1")


@pytest.mark.usefixtures("told")
async def test_a_grant_of_the_old_primary_is_not_believed(fleet: Fleet) -> None:
    semaphore = fleet.semaphore()
    held = await semaphore.acquire()  # connected
    await until(lambda: fleet.at_replica.zcard(MAIN) == 1, "the replica has heard of it")
    await semaphore.release(held)
    await until(lambda: fleet.at_replica.zcard(MAIN) == 0, "and of its end, too")
    fleet.primary.pause()
    asking = asyncio.create_task(semaphore.acquire())
    await fleet.fails_over()
    with fleet.worker() as newcomer:
        newcomer.tell("acquire")
        await until(lambda: fleet.at_replica.zcard(MAIN) == 1, "a grant of the new primary")
        fleet.primary.resume()
        await until(
            lambda: fleet.at_replica.zcard(WAITING) == 1, "both are at the new primary", within=40
        )
        [holder] = fleet.at_replica.zrange(MAIN, 0, -1)
        if shared_of(semaphore).token in holder:
            acquired = await asyncio.wait_for(asking, 30)
            assert newcomer.says_nothing()
            await semaphore.release(acquired)
            assert (await asyncio.to_thread(newcomer.hears)).startswith("acquired 1")
        else:
            assert (await asyncio.to_thread(newcomer.hears)).startswith("acquired 1")
            assert not asking.done()
            newcomer.tell("release")
            await semaphore.release(await asyncio.wait_for(asking, 30))


async def test_what_a_server_says_late_is_not_believed_while_no_sentinel_answers(
    fleet: Fleet,
) -> None:
    """It may be cut off together with us; the sentinels are asked until one answers."""
    semaphore = fleet.semaphore()
    await semaphore.release(await semaphore.acquire())  # connected
    await asyncio.to_thread(fleet.sentinel.stop)
    with fleet.primary.client() as client:
        client.execute_command("CLIENT", "PAUSE", 1000, "ALL")
    asking = asyncio.create_task(semaphore.acquire())
    reconnector = shared_of(semaphore).client().reconnector_to(None)
    await until(lambda: reconnector.connection is None, "doubt")
    assert not asking.done()
    await asyncio.to_thread(fleet.sentinel.start)
    assert await semaphore.release(await asyncio.wait_for(asking, 30))


async def test_a_slow_primary_is_verified_and_believed(fleet: Fleet) -> None:
    fleet.never_fails_over()
    semaphore = fleet.semaphore()
    await semaphore.release(await semaphore.acquire())  # connected
    reconnector = shared_of(semaphore).client().reconnector_to(None)
    connection = reconnector.connection
    with fleet.primary.client() as client:
        client.execute_command("CLIENT", "PAUSE", 1000, "ALL")
    assert await semaphore.release(await asyncio.wait_for(semaphore.acquire(), 30))
    assert reconnector.connection is connection, "the same connection"


async def test_the_doctor_recommends_that_a_primary_without_replicas_takes_no_writes(
    fleet: Fleet,
) -> None:
    def examined() -> Check:
        [found] = [check for check in examine(fleet.url) if check.check == "replication"]
        return found

    found = await asyncio.to_thread(examined)
    assert found.state == "warning"
    assert "min-replicas-to-write 1" in (found.remedy or "")
    with fleet.primary.client() as client:
        client.config_set("min-replicas-to-write", 1)
        await until(
            lambda: client.info("replication").get("min_slaves_good_slaves") == 1, "a good replica"
        )
        assert (await asyncio.to_thread(examined)).state == "ok"
