"""A grant that is read late: the server may have given the slot to somebody else by then."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest
import redis
from tests.redis._client import Worker
from tests.redis._inside import record_of, shared_of
from tests.redis._server import Server, until
from tests.redis.faults._proxy import Freezes

from slotwise._core.paths import TierSpec
from slotwise._core.results import AcquisitionResult
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._backend import RedisBackend

pytestmark = pytest.mark.soak

INTERVAL = 1.0
TIERS = (TierSpec("user", 1, keyed=True), TierSpec("all", 1, keyed=False))


class SemaphoreOfOne:
    """A semaphore of one slot, seen through one url, and its keys."""

    worker = "tests.redis._worker"

    def __init__(self, url: str) -> None:
        self.limit = RedisSemaphore(
            name="s", value=1, heartbeat_max_interval=INTERVAL, config=RedisConfig(url)
        )
        self.release = self.limit.release
        self.process, record = shared_of(self.limit), record_of(self.limit)
        self.holding, self.waiting = record.keys.all[1], record.keys.all[4]

    async def acquire(self) -> AcquisitionResult:
        return await self.limit.acquire()

    def acquire_sync(self) -> AcquisitionResult:
        return self.limit.acquire_sync()

    @staticmethod
    def worker_options(server: Server) -> dict[str, object]:
        return {
            "config": {"url": server.url},
            "name": "s",
            "value": 1,
            "heartbeat_max_interval": INTERVAL,
        }


class PathOfOne:
    """Tiers with one path, likewise."""

    worker = "tests.redis._path_worker"

    def __init__(self, url: str) -> None:
        self.limit = RedisBackend(
            TIERS, name="s", heartbeat_max_interval=INTERVAL, config=RedisConfig(url)
        )
        self.process, record = shared_of(self.limit), record_of(self.limit)
        self.holding, self.waiting = record.keys.all[1], record.keys.all[2]

    async def acquire(self) -> AcquisitionResult:
        return await self.limit.acquire(("u", None), timeout=None)

    def acquire_sync(self) -> AcquisitionResult:
        return self.limit.acquire_sync(("u", None), timeout=None)

    async def release(self, acquired: AcquisitionResult) -> bool:
        return await self.limit.release(acquired.acquisition_id)

    @staticmethod
    def worker_options(server: Server) -> dict[str, object]:
        return {
            "url": server.url,
            "tiers": [(tier.name, tier.value, tier.keyed) for tier in TIERS],
            "name": "s",
            "heartbeat_max_interval": INTERVAL,
        }


Kind = type[SemaphoreOfOne] | type[PathOfOne]
both_kinds = pytest.mark.parametrize("kind", [SemaphoreOfOne, PathOfOne])


@both_kinds
@pytest.mark.parametrize("sync", [False, True])
async def test_a_grant_that_the_server_took_back_on_its_way_is_not_believed(
    server: Server, client: redis.Redis, kind: Kind, sync: bool
) -> None:
    with Freezes(server.port) as proxy:
        slow, quick = kind(proxy.url), kind(server.url)

        def acquire() -> asyncio.Task[AcquisitionResult]:
            asking = asyncio.to_thread(slow.acquire_sync) if sync else slow.acquire()
            return asyncio.ensure_future(asking)

        await slow.release(await acquire())  # connected
        proxy.freeze_replies()
        late = acquire()
        await until(lambda: client.zcard(slow.holding) == 1, "a grant")
        proxy.freeze()
        held = await asyncio.wait_for(quick.acquire(), 20)
        proxy.thaw()
        await until(lambda: late.done() or client.zcard(slow.waiting) == 1, "asked again")
        assert not late.done()
        assert not held.lost.is_set()
        await quick.release(held)
        acquired = await asyncio.wait_for(late, 20)
        assert acquired.fencing_token > held.fencing_token
        assert not acquired.lost.is_set()
        assert await slow.release(acquired)


@both_kinds
async def test_a_request_that_a_blocked_loop_has_not_seen_answered_is_kept_alive(
    server: Server, client: redis.Redis, kind: Kind
) -> None:
    blocked, go_on = threading.Event(), threading.Event()
    lost: list[bool] = []

    async def ask_and_block(limit: SemaphoreOfOne | PathOfOne) -> None:
        await limit.release(await limit.acquire())  # connected
        proxy.freeze_replies()
        asking = asyncio.create_task(limit.acquire())
        await until(lambda: client.zcard(limit.holding) == 1, "a grant")
        blocked.set()
        go_on.wait(60)
        acquired = await asking
        lost.append(acquired.lost.is_set())
        await limit.release(acquired)

    with Freezes(server.port) as proxy:
        running = asyncio.to_thread(asyncio.run, ask_and_block(kind(proxy.url)))
        holding = asyncio.create_task(running)
        await asyncio.to_thread(blocked.wait, 20)
        proxy.thaw()
        other = kind(server.url)
        [(_, deadline)] = client.zrange(other.holding, 0, -1, withscores=True)
        waiting = asyncio.create_task(other.acquire())

        def outlived_itself() -> bool:
            return client.zrange(other.holding, 0, -1, withscores=True)[0][1] > deadline + INTERVAL

        await until(lambda: waiting.done() or outlived_itself(), "heartbeats for what nobody read")
        assert not waiting.done()
        go_on.set()
        await asyncio.wait_for(holding, 20)
        assert lost == [False]
        await other.release(await asyncio.wait_for(waiting, 20))


@both_kinds
async def test_a_waiter_that_was_stopped_does_not_believe_a_grant_of_long_ago(
    server: Server, client: redis.Redis, kind: Kind
) -> None:
    limit = kind(server.url)
    held = await limit.acquire()
    with Worker(module=kind.worker, **kind.worker_options(server)) as worker:
        worker.tell("acquire" if kind is SemaphoreOfOne else "acquire u")
        await until(lambda: client.zcard(limit.waiting) == 1, "a waiter")
        behind = asyncio.create_task(limit.acquire())
        await until(lambda: client.zcard(limit.waiting) == 2, "another")
        worker.signal(signal.SIGSTOP)
        await limit.release(held)  # it has the slot, and does not know it
        held = await asyncio.wait_for(behind, 20)
        worker.signal(signal.SIGCONT)
        await until(lambda: client.zcard(limit.waiting) == 1, "back in line")
        assert worker.says_nothing()
        assert not held.lost.is_set()
        await limit.release(held)
        assert (await asyncio.to_thread(worker.hears)).startswith("acquired 1")
