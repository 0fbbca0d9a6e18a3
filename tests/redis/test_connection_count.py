"""How many connections a process has: one for each event loop, and one for the keeper."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import redis
from tests.redis._server import Server, until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore


@pytest.fixture
def counted(server: Server, client: redis.Redis) -> Iterator[RedisConfig]:
    """The server, for a user of its own, whose connections can be told from others'."""
    client.execute_command("ACL", "SETUSER", "counted", "on", ">secret", "~*", "&*", "+@all")
    yield RedisConfig(f"redis://counted:secret@127.0.0.1:{server.port}")
    client.execute_command("ACL", "DELUSER", "counted")


def connections(client: redis.Redis) -> int:
    return sum(each["user"] == "counted" for each in client.client_list())


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
    semaphores[0]._process.keeper.beat_soon()
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
        owner = next(s for s in semaphores if s._room is acquired.room)  # type: ignore[attr-defined]
        await owner.release(acquired)
    # The next one to come closes what closed loops left open; so does the keeper.
    semaphores[0]._process.keeper.beat_soon()
    await until(lambda: connections(client) == 2, "the closed loops' connections are closed")
    assert_nothing_left(client)


async def test_namespaces_share_their_thread_and_connections(
    counted: RedisConfig, client: redis.Redis
) -> None:
    """They are only a prefix of keys."""

    def keepers() -> int:
        return sum(thread.name == "slotwise-keeper" for thread in threading.enumerate())

    async def use(number: int) -> None:
        config = counted.with_options(namespace=f"namespace-{number}")
        semaphore = RedisSemaphore(1, name="s", config=config)
        async with semaphore:
            assert client.exists(f"namespace-{number}:semaphore_main:s")

    await use(0)
    threads, links = keepers(), connections(client)
    for number in range(1, 41):
        await use(number)
    assert keepers() == threads
    assert connections(client) == links > 0
    assert await RedisSemaphore.get_acquired_stats(["s"], config=counted) == {}
