"""Adaptive tiers on Redis: each node finds its own value, and releases carry the samples."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
from tests.redis._keys import PATH_KINDS, PathKeys

from slotwise import Adaptive, Errors, Tier, Tiers
from slotwise.redis import RedisConfig

ERRORS = Adaptive(10, 2, 20, algorithm=Errors())


def tiers(config: RedisConfig, *more: Any, name: str = "t", **options: Any) -> Tiers:
    made = [*more] or [Tier("tenant", ERRORS, keyed=True), Tier("all", Adaptive(30, 5, 50))]
    return Tiers(*made, name=name, url=config, **options)


def field(client: redis.Redis, name: str) -> Any:
    return client.hget(PathKeys(RedisConfig().namespace, "t").all[0], name)


async def values(of: Tiers) -> dict[str, Any]:
    stats = await of.stats()
    return {
        "all": stats["all"].value,
        **{key: each.value for key, each in stats["tenant"].keys.items()},
    }


async def test_a_key_that_nobody_uses_is_forgotten_with_what_it_learnt(
    config: RedisConfig, client: redis.Redis
) -> None:
    made = tiers(config, heartbeat_max_interval=60, ping_interval=0.1)
    keys = PathKeys(RedisConfig().namespace, "t").all
    state, cleanup = keys[0], keys[PATH_KINDS.index("cleanup")]
    for key in ("acme", "emca"):
        async with made.at(tenant=key).cm() as acquired:
            acquired.dropped()
    await made.freeze("tenant", key="emca")
    for key in ("acme", "emca"):
        _, rest = field(client, f"%0:{key}").split(";", 1)
        long_ago = f"1;{rest}".encode(errors="surrogateescape")
        client.hset(state, f"%0:{key}", long_ago)
        client.zadd(cleanup, {f"%0:{key}": 1}, xx=True)
    async with made.at(tenant="new").cm():
        while field(client, "%0:acme"):  # heartbeats look for such
            await asyncio.sleep(0.05)
    assert field(client, "0:acme") is None
    assert field(client, "&0:acme") is None
    assert field(client, "%0:emca"), "it is frozen"
