"""Thousands of slots at once: in few calls of bounded cost, or refused."""

from __future__ import annotations

import pytest
import redis
from tests.redis.test_semaphore import assert_nothing_left

from slotwise.redis import RedisConfig, RedisSemaphore

WIDE = 10_000


def busy_ms(client: redis.Redis) -> float:
    """How much processor time the server has used: others on this machine do not count."""
    used = client.info("cpu")
    return 1000 * float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])


@pytest.mark.soak
async def test_ten_thousand_slots_are_taken_and_given_in_little_of_the_servers_time(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=3 * WIDE, config=config)
    plain, taking, giving = [], [], []
    members = {f"{n}-of-so-many": n for n in range(WIDE)}
    for _ in range(3):
        # What the least of it costs this server now: a crowded machine can be slow by a factor.
        started = busy_ms(client)
        client.zadd("plain", members)
        client.zrem("plain", *members)
        plain.append(busy_ms(client) - started)
        started = busy_ms(client)
        acquired = await semaphore.acquire(WIDE)
        taking.append(busy_ms(client) - started)
        assert client.zcard("adv-sem:semaphore_main:s") == WIDE
        started = busy_ms(client)
        assert await semaphore.release(acquired) is True
        giving.append(busy_ms(client) - started)
    slow = max(1.0, min(plain) / 10)  # on a machine of its own, 10 ms
    assert min(taking) < 50 * slow
    assert min(giving) < 50 * slow
    assert_nothing_left(client)


async def test_more_slots_than_the_bound_are_refused_by_its_name(config: RedisConfig) -> None:
    semaphore = RedisSemaphore(name="s", value=10**6, config=config)
    for take in (semaphore.acquire, semaphore.try_acquire):
        with pytest.raises(ValueError, match="at most 10000 at once on Redis, not 10001"):
            await take(WIDE + 1)
    with pytest.raises(ValueError, match="at most 10000"):
        async with semaphore.cm(WIDE + 1):
            pass
