"""Processes that die, stop or block: real ones, with real signals."""

from __future__ import annotations

import asyncio
import os

import pytest
import redis
from tests._stdlib import leave
from tests.redis._client import Worker
from tests.redis._server import Server, until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.redis import RedisConfig, RedisSemaphore

INTERVAL = 1.0


def options(server: Server) -> dict[str, object]:
    return {
        "config": {"url": server.url},
        "name": "s",
        "value": 1,
        "heartbeat_max_interval": INTERVAL,
    }


def semaphore_on(server: Server) -> RedisSemaphore:
    return RedisSemaphore(
        name="s", value=1, heartbeat_max_interval=INTERVAL, config=RedisConfig(server.url)
    )


async def test_a_killed_holder_frees_its_slot_for_a_waiter(
    server: Server, client: redis.Redis
) -> None:
    semaphore = semaphore_on(server)
    with Worker(**options(server)) as worker:
        worker.tell("acquire")
        assert worker.hears().startswith("acquired 1")
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(semaphore, 1)
        worker.kill()
        acquired = await asyncio.wait_for(waiting, 20)
        assert acquired.slot_number == 1
    await semaphore.release(acquired)
    assert_nothing_left(client)


async def test_a_killed_head_waiter_does_not_block_those_behind_it(
    server: Server, client: redis.Redis
) -> None:
    semaphore = semaphore_on(server)
    held = await semaphore.acquire()
    with Worker(**options(server)) as worker:
        worker.tell("acquire")
        await in_line(semaphore, 1)
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(semaphore, 2)
        worker.kill()
        await semaphore.release(held)
        # Granted to the dead one, perhaps; its silence hands it on.
        acquired = await asyncio.wait_for(waiting, 20)
    await semaphore.release(acquired)
    assert_nothing_left(client)


@pytest.mark.soak
async def test_a_holder_with_a_blocked_event_loop_keeps_its_slot(server: Server) -> None:
    semaphore = semaphore_on(server)
    with Worker(**options(server)) as worker:
        worker.tell("acquire")
        worker.hears()
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(semaphore, 1)
        worker.tell(f"block {2 * INTERVAL}")
        assert await asyncio.to_thread(worker.hears) == "unblocked"
        assert not waiting.done()
        worker.tell("held")
        assert await asyncio.to_thread(worker.hears) == "held 1"
        worker.tell("release")
        await semaphore.release(await asyncio.wait_for(waiting, 20))
        assert worker.hears() == "released True"


async def test_a_forked_child_has_its_own_connections_and_none_of_its_parents_slots(
    server: Server, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=2, config=RedisConfig(server.url))
    held = await asyncio.to_thread(semaphore.acquire_sync)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        report = "nothing"
        try:
            import threading

            def work() -> str:
                if semaphore.release_sync(held):
                    return "released its parent's slot"
                own = semaphore.acquire_sync(timeout=10)
                ids = {each.acquisition_id for each in semaphore.holders_sync()}
                return f"{own.slot_number} {len(ids)} {semaphore.release_sync(own)}"

            answers: list[str] = []
            # A thread without the parent's event loop, which was copied with it.
            thread = threading.Thread(target=lambda: answers.append(work()))
            thread.start()
            thread.join(20)
            report = answers[0]
        except BaseException as error:
            report = repr(error)
        finally:
            os.write(writing, report.encode())
            leave()
    os.close(writing)
    report = await asyncio.to_thread(os.read, reading, 1000)
    os.close(reading)
    await asyncio.to_thread(os.waitpid, child, 0)
    assert report == b"2 2 True"
    assert [each.acquisition_id for each in await semaphore.holders()] == [held.acquisition_id]
    assert await semaphore.release(held) is True
    await until(lambda: client.zcard("adv-sem:semaphore_main:s") == 0, "nobody")
