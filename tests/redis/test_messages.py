"""What is published on our channels by somebody else: ignored, or looked up, and never believed."""

from __future__ import annotations

import asyncio

import pytest
import redis
from tests.redis._inside import shared_of
from tests.redis._server import Server, as_another_process, until
from tests.redis.test_semaphore import in_line

from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._shared_client import SharedClient

MALFORMED = (
    *(
        "nonsense",
        b"\xff\xfe",
        "",
        " ",
        "granted",
        "granted {id}",
        "granted {id} 1",
        "granted {id} x y",
    ),
    *("granted {id} 1 2 3", "granted {id} 99999999999999999999 -1", "gone {id}", "closed {id} x"),
    *("refused {id}", "refused {id} x", "kicked", "look", "look {id} more", "unknown {id}"),
    *(b"granted \xff 1 2", "granted {id} 1 2 " + "0" * 40, " {id}", "x" * 100_000),
)


class Strangers:
    """Somebody who may publish, and knows what can be known: the channels and the ids."""

    def __init__(self, client: redis.Redis, process: SharedClient) -> None:
        self._client = client
        self._shared = process
        self.channel = f"slotwise:{process.client().token}"

    def say(self, message: str | bytes, about: RedisAcquisition) -> None:
        if isinstance(message, str):
            message = message.replace("{id}", about.acquisition_id)
        assert self._client.publish(self.channel, message) == 1

    async def heard(self, waiter: RedisAcquisition) -> None:
        """Until the server was asked about a waiter of whom something has been said."""
        before = waiter.alive_at
        self.say("granted {id} 1 2", about=waiter)
        await until(lambda: waiter.alive_at > before or waiter.future.done(), "a look at it")


def only_waiter(process: SharedClient) -> RedisAcquisition:
    [waiter] = process.waiters.values()
    return waiter


async def test_malformed_messages_mute_nothing_and_are_logged_once(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    # A reply that is not read would hang; and nothing was logged there before.
    config = as_another_process(RedisConfig(server.url, reply_timeout=100))
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    waiter = only_waiter(shared_of(semaphore))
    strangers = Strangers(client, shared_of(semaphore))
    for message in MALFORMED:
        strangers.say(message, about=waiter)
        strangers.say(message, about=held)  # type: ignore[arg-type]
        assert (await asyncio.wait_for(semaphore.stats(), 20)).waiting == 1
    await strangers.heard(waiter)
    assert not waiting.done()
    assert not held.lost.is_set()
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "slotwise:*" in caplog.text
    assert await semaphore.release(held)
    assert await semaphore.release(await asyncio.wait_for(waiting, 20))


async def test_a_forged_grant_of_a_slot_is_not_believed(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    strangers = Strangers(client, shared_of(semaphore))
    waiter = only_waiter(shared_of(semaphore))
    for message in ("granted {id} 1 2", "closed {id}", "refused {id} 1", "gone {id}"):
        strangers.say(message, about=waiter)
        await strangers.heard(waiter)
        assert not waiting.done()
    assert (await semaphore.stats()).waiting == 1
    strangers.say("kicked {id}", about=held)  # type: ignore[arg-type]
    await strangers.heard(waiter)
    assert not held.lost.is_set()
    await semaphore.release(held)
    await semaphore.release(await asyncio.wait_for(waiting, 20))


async def test_a_listener_can_forge_no_other_message(
    config: RedisConfig, client: redis.Redis
) -> None:
    """The proof of one message proves nothing else, and never again after a loss."""
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    elsewhere = RedisSemaphore(name="s", value=1, config=as_another_process(config))
    strangers = Strangers(client, shared_of(semaphore))
    with client.pubsub() as listening:
        listening.subscribe(strangers.channel)
        assert listening.get_message(timeout=10)["type"] == "subscribe"
        other = await elsewhere.acquire()
        waiting = asyncio.create_task(semaphore.acquire())
        await in_line(semaphore, 1)
        await elsewhere.release(other)  # another process, as far as messages go
        held = await asyncio.wait_for(waiting, 20)
        overheard = listening.get_message(timeout=10)["data"]
    word, acquisition_id, *_, proof = overheard.split(" ")
    assert (word, acquisition_id) == ("granted", held.acquisition_id)
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    waiter = only_waiter(shared_of(semaphore))
    strangers.say(f"kicked {acquisition_id} {proof}", about=waiter)
    strangers.say(overheard.replace(acquisition_id, waiter.acquisition_id), about=waiter)
    await strangers.heard(waiter)
    assert not waiting.done()
    assert not held.lost.is_set()
    await semaphore.release(held)
    await semaphore.release(await asyncio.wait_for(waiting, 20))


async def test_nobody_is_shown_the_secret_that_messages_are_proved_with(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    held = await semaphore.acquire(label="work")
    [holder] = await semaphore.holders()
    assert holder.label == "work"
    assert shared_of(semaphore)._secret.decode() not in repr(holder) + repr(held) + repr(semaphore)
    await semaphore.release(held)
