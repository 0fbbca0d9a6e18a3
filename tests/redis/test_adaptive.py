"""An adaptive RedisSemaphore: samples travel with releases, and the value is the fleet's."""

from __future__ import annotations

import pytest
import redis
from tests.redis._inside import shared_of
from tests.redis._keys import SemaphoreKeys
from tests.redis._window import read_window

from slotwise import Adaptive, Errors, ValueConflict
from slotwise.redis import RedisConfig, RedisSemaphore

NAMESPACE = RedisConfig().namespace
ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


def window_of(client: redis.Redis, name: str) -> dict[str, int]:
    """What is counted in the window of a semaphore."""
    names = ("mark", "begin", "ends", "need", "calls", "succeeded", "busy", "failed")
    adaptation = client.hget(SemaphoreKeys(NAMESPACE, name).state, "%0:")
    return dict(zip(names, read_window(adaptation.split(";", 2)[2]), strict=True))


async def test_the_hold_is_timed_by_the_clients_clock(
    config: RedisConfig, client: redis.Redis
) -> None:
    limit = RedisSemaphore(Adaptive(10, 2, 20), name="s", config=config)
    acquired = await limit.acquire()
    acquired.since -= 5  # type: ignore[attr-defined]
    await limit.release(acquired)
    counted = window_of(client, "s")
    assert 5_000_000 <= counted["busy"] < 15_000_000
    assert (counted["calls"], counted["succeeded"]) == (1, 1)


async def test_a_release_of_another_process_counts_since_the_grant(
    config: RedisConfig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = RedisSemaphore(Adaptive(10, 2, 20), name="s", config=config)
    acquired = await limit.acquire()
    holders = shared_of(limit).holders
    holder = holders.pop(acquired.acquisition_id)
    monkeypatch.setattr("slotwise.redis._shared_client.has_issued", lambda _: False)
    assert await limit.release(acquired.acquisition_id, outcome="dropped")
    holder.mark_ended()
    counted = window_of(client, "s")
    assert (counted["calls"], counted["succeeded"]) == (1, 0)
    assert counted["failed"] > 0


async def test_clients_of_the_documented_protocol_keep_it_from_adapting(
    config: RedisConfig, client: redis.Redis
) -> None:
    """They bring their own limit: where one is first, an adaptive semaphore is refused."""
    keys = SemaphoreKeys(NAMESPACE, "s")
    client.zadd(keys.main, {"theirs": 4e9})
    client.set(keys.max, 7, ex=60)
    client.expire(keys.main, 60)
    with pytest.raises(ValueConflict, match="in use with 7 slots"):
        await RedisSemaphore(ERRORS, name="s", config=config).acquire()
    client.delete(keys.main)
    # One that comes later takes slots of it, and nothing about its work is counted.
    limit = RedisSemaphore(ERRORS, name="s", config=config)
    async with limit.cm():
        client.zadd(keys.main, {"theirs": 4e9})
        assert (await limit.stats()).acquired_slots == 2
        client.zrem(keys.main, "theirs")
    assert window_of(client, "s")["calls"] == 1
