"""Keys that somebody has deleted or overwritten: the trouble of one name stays that name's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
from tests.redis._keys import KINDS, PATH_KINDS
from tests.redis._server import as_another_process, until

from slotwise import Limit, Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore

# A busy machine stands still for some seconds, which must cost no slot; heartbeats are frequent.
HEARTBEATS: Any = {"heartbeat_max_interval": 60, "ping_interval": 0.2}


def delete(client: redis.Redis, key: str) -> None:
    client.delete(key)


def replace(client: redis.Redis, key: str) -> None:
    """At one instant, by something that no script can work with."""
    pipe = client.pipeline(transaction=True)
    pipe.delete(key).rpush(key, "damaged").pexpire(key, 60_000).execute()


def overwrite(client: redis.Redis, key: str) -> None:
    """Each field, or each member, by something else in a key of the same type."""
    kind = client.type(key)
    if kind == "hash":
        client.hset(key, mapping=dict.fromkeys(client.hkeys(key), "garbage"))
    elif kind == "zset":
        garbage = {f"garbage {number}": 1.0 for number in range(client.zcard(key))}
        pipe = client.pipeline(transaction=True)
        pipe.delete(key).zadd(key, garbage).pexpire(key, 60_000).execute()
    elif kind == "string":
        client.set(key, "garbage", keepttl=True)


def make(kind: str, name: str, config: RedisConfig) -> Limit:
    if kind == "semaphore":
        return RedisSemaphore(1, name=name, config=config, **HEARTBEATS)
    tiers = Tier("user", 1, keyed=True), Tier("all", 2)
    return Tiers(*tiers, name=name, url=config, **HEARTBEATS).at(user="ada")


class Users:
    """A holder of a limit, and waiters of two processes, who release what they get."""

    def __init__(self, kind: str, name: str, config: RedisConfig, other: RedisConfig) -> None:
        self.name = name
        self._limits = [make(kind, name, each) for each in (config, other)]
        self.served: list[list[int]] = [[], []]  # by process, in the order of their grants
        self.tasks: list[asyncio.Task[None]] = []

    async def line_up(self) -> None:
        limit = self._limits[0]
        self.held = await limit.acquire()
        for number in range(4):
            self.tasks.append(asyncio.create_task(self._wait(number % 2, number)))
            await until(lambda n=number: self._is_waiting(n + 1), "one more waiter")

    async def _is_waiting(self, count: int) -> bool:
        return (await self._limits[0].stats()).waiting == count

    async def _wait(self, process: int, number: int) -> None:
        async with self._limits[process].cm():
            self.served[process].append(number)

    async def go_on(self) -> None:
        """Everybody is served in the order of their process, and the limit is as a new one."""
        limit = self._limits[0]
        await limit.release(self.held)  # unless that is lost
        await asyncio.wait_for(asyncio.gather(*self.tasks), 60)
        assert self.served == [[0, 2], [1, 3]], self.name
        again = await limit.acquire(timeout=60)
        assert again.slot_number == 1
        assert await limit.release(again) is True
        assert (await limit.stats()).acquired_slots == 0


@pytest.fixture
def reset_names(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The names that were reset, as the log tells; nothing else is logged."""
    caplog.set_level(logging.INFO, "slotwise.redis")

    def names() -> list[str]:
        texts = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        others = [text for text in texts if "begins anew" not in text and " lost by " not in text]
        assert others == []
        return sorted(text.split("'")[1] for text in texts if "begins anew" in text)

    return names


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
@pytest.mark.parametrize("damage", [delete, replace, overwrite])
async def test_damage_of_any_key_of_a_name_costs_nobody_else_anything(
    config: RedisConfig,
    client: redis.Redis,
    reset_names: Callable[[], list[str]],
    kind: str,
    damage: Callable[[redis.Redis, str], None],
) -> None:
    other = as_another_process(config)
    kinds = KINDS if kind == "semaphore" else PATH_KINDS
    holders = "main" if kind == "semaphore" else "holders"
    damaged = [Users(kind, each, config, other) for each in kinds]
    sound = [Users(each, "sound", config, other) for each in ("semaphore", "tiers")]
    for users in (*sound, *damaged):
        await users.line_up()
    for users in damaged:
        damage(client, f"adv-sem:{kind}_{users.name}:{users.name}")
    for users in damaged:
        if users.name in ("state", holders):
            await asyncio.wait_for(users.held.lost, 60)
    for users in damaged:
        await users.go_on()
    reset = reset_names()
    assert len({*reset}) == len(reset), "one warning for each"
    # Of a semaphore without its state, and without a word in it of its holders, it can't be known
    # that they were not clients of the documented protocol.
    assert {*reset} >= {"state"} or (kind, damage) == ("semaphore", delete)
    assert {*reset} >= {holders} or damage is not replace
    for users in sound:
        assert users.name not in reset
        assert not users.held.lost.is_set()
        assert users.served == [[], []]
        await users.go_on()
