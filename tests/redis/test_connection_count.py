"""How many connections a process has: one for each event loop, and one for the heartbeat thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import redis
from tests.redis._inside import record_of, shared_of, thread_of
from tests.redis._server import Server, until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore, _heartbeat_thread
from slotwise.tiers import Tier, Tiers

users: list[str] = []


@pytest.fixture
def counted(server: Server, client: redis.Redis) -> Iterator[RedisConfig]:
    """The server, for a user of its own, whose connections can be told from others'."""
    user = f"counted-{len(users)}"
    users.append(user)
    client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all")
    yield RedisConfig(f"redis://{user}:secret@127.0.0.1:{server.port}")
    client.execute_command("ACL", "DELUSER", user)


def connections(client: redis.Redis) -> int:
    return sum(each["user"] == users[-1] for each in client.client_list())


async def test_one_loop_has_two_connections_and_each_further_loop_one_more(
    counted: RedisConfig, client: redis.Redis
) -> None:
    semaphores = [RedisSemaphore(name=f"s{n}", value=1, config=counted) for n in range(5)]
    held = [await semaphore.acquire() for semaphore in semaphores]
    waiting = [
        asyncio.create_task(semaphore.acquire()) for semaphore in semaphores for _ in range(50)
    ]
    for semaphore in semaphores:
        await in_line(semaphore, 50)
    threads = [
        asyncio.create_task(asyncio.to_thread(semaphore.acquire_sync)) for semaphore in semaphores
    ]
    for semaphore in semaphores:
        await in_line(semaphore, 51)
    await RedisSemaphore.get_acquired_stats(config=counted)
    shared_of(semaphores[0]).heartbeat_thread.heartbeat_soon()
    assert connections(client) == 2

    stay = threading.Event()

    def another_loop(n: int) -> None:
        async def work() -> None:
            other = RedisSemaphore(name=f"other {n}", value=1, config=counted)
            async with other:
                await asyncio.to_thread(stay.wait, 30)

        asyncio.run(work())

    others = [threading.Thread(target=another_loop, args=(n,)) for n in range(3)]
    for other in others:
        other.start()
    for n in range(3):
        await until(lambda n=n: client.exists(f"adv-sem:semaphore_main:other {n}"), "its slot")
    assert connections(client) == 2 + 3
    stay.set()
    for other in others:
        await asyncio.to_thread(other.join, 30)

    for semaphore, acquired in zip(semaphores, held, strict=True):
        await semaphore.release(acquired)
    for each in asyncio.as_completed([*waiting, *threads]):
        acquired = await each
        owner = next(s for s in semaphores if record_of(s) is acquired.record)  # type: ignore[attr-defined]
        await owner.release(acquired)
    # The next one to come closes what closed loops left open; so does the heartbeat thread.
    shared_of(semaphores[0]).heartbeat_thread.heartbeat_soon()
    await until(lambda: connections(client) == 2, "the closed loops' connections are closed")
    assert_nothing_left(client)


def heartbeat_threads() -> int:
    return sum(thread.name == "slotwise-heartbeat" for thread in threading.enumerate())


async def test_configurations_with_other_limits_share_their_thread_and_connections(
    counted: RedisConfig, client: redis.Redis
) -> None:
    """They belong to each call."""

    def configs() -> Iterator[RedisConfig]:
        for number in range(1, 21):
            yield counted.with_options(
                namespace=f"namespace-{number}",
                connect_timeout=number,
                reply_timeout=number,
                attempts=number,
                backoff=number / 100,
                max_backoff=number,
                cleanup_timeout=number,
            )

    before = heartbeat_threads()
    semaphores = [RedisSemaphore(1, name="s", config=config) for config in configs()]
    tiers = [Tiers(Tier("user", 1, keyed=True), name="t", url=config) for config in configs()]
    held = [await each.acquire() for each in semaphores]
    paths = [await each.acquire(user="u") for each in tiers]
    in_threads = [asyncio.to_thread(each.stats_sync) for each in semaphores]
    assert {stats.acquired_slots for stats in await asyncio.gather(*in_threads)} == {1}
    assert len({shared_of(each) for each in semaphores}) == 1
    assert heartbeat_threads() <= before + 1
    assert connections(client) == 2  # of this loop, and of the heartbeat thread
    for semaphore, acquired in zip(semaphores, held, strict=True):
        assert await semaphore.release(acquired)
    for each, path in zip(tiers, paths, strict=True):
        assert await each.release(path)


async def nothing_is_left(semaphore: RedisSemaphore, client: redis.Redis) -> None:
    thread = thread_of(shared_of(semaphore).heartbeat_thread)
    await until(lambda: connections(client) == 0, "no connection")
    await until(lambda: thread is None or not thread.is_alive(), "no thread")


@pytest.mark.soak
@pytest.mark.parametrize("way", ["tasks", "threads"])
async def test_thread_and_connections_go_when_nobody_has_had_a_use_for_them(
    counted: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(_heartbeat_thread, "IDLE", 0.2)
    semaphore = RedisSemaphore(1, name="s", config=counted)

    async def take() -> None:
        if way == "tasks":
            async with semaphore:
                assert connections(client) > 0
        else:
            held = await asyncio.to_thread(semaphore.acquire_sync)
            assert connections(client) > 0
            await asyncio.to_thread(semaphore.release_sync, held)

    for _ in range(3):
        await take()
        await nothing_is_left(semaphore, client)
    await semaphore.stats()
    await nothing_is_left(semaphore, client)
    held = await semaphore.acquire()
    waiter = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    await asyncio.sleep(0.5)  # nothing happens meanwhile, which is what is to be seen
    assert connections(client) > 0
    await semaphore.release(held)
    await semaphore.release(await asyncio.wait_for(waiter, 30))


async def test_the_last_close_ends_thread_and_connections(
    counted: RedisConfig, client: redis.Redis
) -> None:
    one = RedisSemaphore(1, name="one", config=counted)
    other = RedisSemaphore(1, name="other", config=counted.with_options(namespace="elsewhere"))
    held = await one.acquire()
    async with other:
        pass
    acquired = await asyncio.to_thread(other.acquire_sync)
    await asyncio.to_thread(other.release_sync, acquired)
    await one.close()
    assert connections(client) > 0  # the other is open
    await other.close()
    assert await one.release(held)
    await nothing_is_left(one, client)
    again = RedisSemaphore(1, name="one", config=counted)
    async with again:
        assert connections(client) > 0
    await asyncio.to_thread(again.close_sync)
    await nothing_is_left(again, client)
