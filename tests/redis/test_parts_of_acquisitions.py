"""Ids of several slots, and the members that stand for them: made up, in part, or left behind."""

from __future__ import annotations

import pytest
import redis
from tests.redis._calls import Calls
from tests.redis._inside import shared_of

from slotwise.redis import RedisConfig, RedisSemaphore


def cpu_seconds(client: redis.Redis) -> float:
    """What the server has computed for, whatever else the machine does."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


@pytest.mark.soak
def test_dropping_one_of_many_slots_does_not_stop_the_server(client: redis.Redis) -> None:
    slots, scripts = 1000, Calls(client, "adv-sem", "s", values=2000)
    name = f"sw-dead-1*{slots}"
    client.zadd(scripts.key("main"), {name: 1, **{f"{name}#{n}": 1 for n in range(2, slots + 1)}})
    before = cpu_seconds(client)
    assert scripts.request("sw-x-1")[0] == "granted"
    assert scripts.counts() == [1, 0]
    assert cpu_seconds(client) - before < 0.1  # each member once, not each for each


async def test_a_made_up_id_of_very_many_slots_does_not_stop_the_server(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config.with_options(reply_timeout=2))
    held = await semaphore.acquire()
    assert not await semaphore.release("sw-made-up*2000000000")  # or no reply in time
    assert await semaphore.release(held)


async def test_what_foreign_clients_left_of_a_dead_holder_is_dropped(client: redis.Redis) -> None:
    scripts = Calls(client, "adv-sem", "s", values=40)
    assert scripts.request("sw-dead-1*30")[0] == "granted"
    members = dict.fromkeys(client.zrange(scripts.key("main"), 0, -1), 1)
    client.zadd(scripts.key("main"), members)
    client.zrem(scripts.key("main"), *[f"sw-dead-1*30#{n}" for n in range(2, 12)], "sw-dead-1*30")
    assert scripts.request("sw-x-2")[:2] == ["granted", 1]
    assert scripts.counts() == [1, 0]


async def test_releasing_an_id_of_another_name_leaves_its_holder_alone(
    config: RedisConfig,
) -> None:
    """A process that forgot it would stop its heartbeats, and lose the slot by silence."""
    one = RedisSemaphore(name="one", value=1, config=config)
    other = RedisSemaphore(name="other", value=1, config=config)
    held = await one.acquire()
    assert await other.release(held) is False
    assert held.acquisition_id in shared_of(one).holders
    assert (await one.stats()).acquired_slots == 1
    assert await one.release(held) is True
