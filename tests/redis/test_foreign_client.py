"""A client that knows only the documented flow shares semaphores with ours.

It queues, wakes, waits on its list, confirms, pings and releases, by the six
scripts and its own clock, which may be wrong by a fifth of the interval.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid

import pytest
import redis
from tests.redis._document import SCRIPTS
from tests.redis._eval import evaluate
from tests.redis._inside import record_of, shared_of
from tests.redis._keys import PLACEHOLDER
from tests.redis._server import BUSY, Server, until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise import LimitFull
from slotwise._core import unreachable
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._scripts import load

INTERVAL = 1.5
PING = INTERVAL / 5


class Foreigner:
    """The documented flow, and nothing else."""

    own_ttl: float | str = ""

    def __init__(self, server: Server, value: int, clock_error: float = 0.0) -> None:
        self.client = server.client(decode_responses=True)
        self.value = value
        self.clock_error = clock_error
        prefix = "adv-sem:semaphore_"
        self.main, self.ttl, self.max = (f"{prefix}{k}:s" for k in ("main", "ttl", "max"))
        self.line = (f"{prefix}waiting:s", f"{prefix}waiting_heartbeat:s")
        self.pattern = f"adv-sem:acquisition_notification:{PLACEHOLDER}"

    def now(self) -> float:
        return time.time() + self.clock_error

    def run(self, name: str, keys: tuple[str, ...], *args: object) -> object:
        return evaluate(self.client, self.source(name), len(keys), *keys, *map(str, args))

    def source(self, name: str) -> str:
        return load(f"documented/{name}").source.decode()

    def queue(self) -> str:
        claim_id = uuid.uuid4().hex
        self.run("queue", self.line, claim_id, INTERVAL, self.own_ttl, self.now())
        return claim_id

    def wake_up_nexts(self) -> object:
        keys = (self.main, self.ttl, *self.line)
        return self.run(
            "wake_up_nexts", keys, self.value, INTERVAL, self.own_ttl, self.now(), self.pattern
        )

    def ping(self, claim_id: str) -> object:
        return self.run(
            "ping", (*self.line, self.main), claim_id, INTERVAL, self.own_ttl, self.now()
        )

    def wait(self, claim_id: str, *, within: float = 20) -> None:
        deadline = time.monotonic() + within
        while True:
            self.wake_up_nexts()
            if self.client.blpop([self.pattern.replace(PLACEHOLDER, claim_id)], timeout=PING):
                break
            assert self.ping(claim_id) != [0, 0], "given up for dead"
            assert time.monotonic() < deadline, "never granted"
        keys = (self.main, self.ttl, self.max)
        changed, _ = self.run(
            "acquire", keys, claim_id, self.value, INTERVAL, self.own_ttl, self.now()
        )  # type: ignore[misc]
        assert changed == 1

    def acquire(self) -> str:
        claim_id = self.queue()
        self.wait(claim_id)
        return claim_id

    def release(self, claim_id: str) -> object:
        return self.run("release", (self.main, self.ttl, *self.line), claim_id)


class Stranger(Foreigner):
    """One with scripts of its own: they wake by lists, and keys expire by the last writer."""

    own_ttl = 60

    def source(self, name: str) -> str:
        return SCRIPTS[name]


def ours(server: Server, value: int, interval: float = INTERVAL) -> RedisSemaphore:
    return RedisSemaphore(
        name="s", value=value, heartbeat_max_interval=interval, config=RedisConfig(server.url)
    )


@pytest.mark.parametrize("clock_error", [-INTERVAL / 5, 0.0, INTERVAL / 5])
async def test_order_is_kept_between_ours_and_theirs(
    server: Server, client: redis.Redis, clock_error: float
) -> None:
    foreigner, semaphore = Foreigner(server, 1, clock_error), ours(server, 1)
    first = await asyncio.to_thread(foreigner.acquire)
    alive = threading.Event()

    def keep_pinging(*ids: str) -> None:
        while not alive.wait(PING):
            for claim_id in ids:
                foreigner.ping(claim_id)

    order: list[str] = []

    async def work(name: str) -> None:
        async with semaphore:
            order.append(name)

    a = asyncio.create_task(work("ours, first"))
    await in_line(semaphore, 1)
    theirs = foreigner.queue()
    pinging = asyncio.create_task(asyncio.to_thread(keep_pinging, first, theirs))
    b = asyncio.create_task(work("ours, last"))
    await in_line(semaphore, 3)

    foreigner.release(first)  # wakes nobody
    await asyncio.wait_for(a, 20)
    await asyncio.to_thread(foreigner.wait, theirs)
    order.append("theirs")
    assert not b.done()
    foreigner.release(theirs)
    await asyncio.wait_for(b, 20)
    alive.set()
    await pinging
    assert order == ["ours, first", "theirs", "ours, last"]
    assert_nothing_left(client)


@pytest.mark.soak
async def test_neither_exceeds_the_value_and_both_make_progress(
    server: Server, client: redis.Redis
) -> None:
    semaphore = ours(server, 2)
    lock, inside, most = threading.Lock(), [0], [0]

    def enter(step: int) -> None:
        with lock:
            inside[0] += step
            most[0] = max(most[0], inside[0])

    def foreign_work(clock_error: float) -> int:
        foreigner = Foreigner(server, 2, clock_error)
        for _ in range(8):
            claim_id = foreigner.acquire()
            enter(+1)
            time.sleep(0.005)
            enter(-1)
            foreigner.release(claim_id)
        return 8

    async def our_work() -> int:
        for _ in range(8):
            async with semaphore:
                enter(+1)
                await asyncio.sleep(0.005)
                enter(-1)
        return 8

    done = await asyncio.wait_for(
        asyncio.gather(
            asyncio.to_thread(foreign_work, -INTERVAL / 5),
            asyncio.to_thread(foreign_work, INTERVAL / 5),
            *(our_work() for _ in range(4)),
        ),
        60,
    )
    assert done == [8] * 6
    assert most[0] <= 2
    assert_nothing_left(client)


async def test_a_stranger_who_grants_one_of_three_slots_does_not_split_them(
    server: Server, client: redis.Redis
) -> None:
    # Nobody's time is up soon: a look between the grant and the next heartbeat would let one pass.
    semaphore = RedisSemaphore(
        name="s",
        value=3,
        heartbeat_max_interval=60,
        ping_interval=PING,
        config=RedisConfig(server.url),
    )
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire(3))
    await in_line(semaphore, 1)
    [claim_id] = client.zrange("adv-sem:semaphore_waiting:s", 0, 0)
    behind = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 2)
    # What a wake_up_nexts that has never heard of several slots would do.
    with client.pipeline(transaction=True) as at_once:
        at_once.zrem("adv-sem:semaphore_waiting:s", claim_id)
        at_once.zrem("adv-sem:semaphore_waiting_heartbeat:s", claim_id)
        at_once.zadd("adv-sem:semaphore_main:s", {claim_id: time.time() + INTERVAL})
        at_once.execute()
    # A check, which serves whoever fits.
    shared_of(semaphore).heartbeat_thread.heartbeats.schedule_check(record_of(semaphore), 0)
    await until(
        lambda: client.zrank("adv-sem:semaphore_waiting:s", claim_id) == 0, "back in its place"
    )
    assert not behind.done()
    await semaphore.release(held)
    three = await asyncio.wait_for(waiting, 20)
    assert (await semaphore.stats()).acquired_slots == 3
    await semaphore.release(three)
    await semaphore.release(await asyncio.wait_for(behind, 20))
    assert_nothing_left(client)


async def test_what_a_stranger_removed_is_mended(server: Server, client: redis.Redis) -> None:
    semaphore = ours(server, 2)
    first = await semaphore.acquire()
    Foreigner(server, 2).release(first.acquisition_id)
    await asyncio.wait_for(first.lost, 20)
    numbers = [(await semaphore.acquire()).slot_number for _ in range(2)]
    assert sorted(numbers) == [1, 2]
    for holder in await semaphore.holders():
        await semaphore.release(holder.acquisition_id)
    await until(
        lambda: (
            not [field for field in client.hkeys("adv-sem:semaphore_state:s") if field[0] != "."]
            and not client.exists("adv-sem:semaphore_numbers:s")
        ),
        "no claims and numbers of the dead",
    )


NEVER = 1000.0


async def test_keys_that_a_stranger_lets_expire_are_kept_while_ours_hold(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the heartbeat: with ours of 200 s, the stranger's 1 + 10 s must not end it."""
    assert ours(server, 2, NEVER).ping_interval == 5
    monkeypatch.setattr(unreachable, "_LONGEST_PING", 0.2)
    semaphore = RedisSemaphore(
        2, name="s", ttl=NEVER, heartbeat_max_interval=NEVER, config=RedisConfig(server.url)
    )
    held = await semaphore.acquire()
    stranger = Stranger(server, 2)
    stranger.own_ttl = 1
    claim_id = await asyncio.to_thread(stranger.acquire)
    stranger.release(claim_id)

    def lives() -> list[float]:
        return [client.pttl(key) / 1000 for key in (stranger.main, stranger.ttl, stranger.max)]

    await until(lambda: min(lives()) >= NEVER - 60, "longer lives")
    assert not held.lost.is_set()
    assert await semaphore.release(held)


@pytest.mark.soak
@pytest.mark.parametrize("interval", [15, NEVER])
async def test_what_a_stranger_frees_without_a_word_is_noticed_within_a_second_at_any_heartbeat(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, interval: float
) -> None:
    monkeypatch.setattr(unreachable, "_LONGEST_PING", NEVER)
    semaphore, stranger = ours(server, 1, interval), Stranger(server, 1)
    took = []
    for _ in range(2):  # the second time it is known already
        claim_id = await asyncio.to_thread(stranger.acquire)
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(semaphore, 1)
        stranger.ping(claim_id)
        stranger.release(claim_id)
        freed_at = time.monotonic()
        acquired = await asyncio.wait_for(waiting, 20)
        took.append(time.monotonic() - freed_at)
        await semaphore.release(acquired)
    assert max(took) < 1 + BUSY, took
    assert_nothing_left(client)


async def test_max_waiting_counts_foreign_clients_and_refuses_none_of_them(server: Server) -> None:
    semaphore = RedisSemaphore(1, name="s", max_waiting=1, config=RedisConfig(server.url))
    held = await semaphore.acquire()
    foreigner = Foreigner(server, 1)
    for claim_id in ("one", "another"):
        foreigner.run("queue", foreigner.line, claim_id, 600, "", foreigner.now())
    assert (await semaphore.stats()).waiting == 2
    with pytest.raises(LimitFull) as refused:
        await semaphore.acquire(timeout=60)
    assert refused.value.waiting == 2
    await semaphore.release(held)
    assert foreigner.client.zrange(foreigner.main, 0, -1) == ["one"]
