"""What may happen to the contents of a key, by a client that reads texts."""

from __future__ import annotations

import redis


def delete(client: redis.Redis, key: bytes) -> None:
    client.delete(key)


def write_garbage(client: redis.Redis, key: bytes) -> None:
    """Other contents of the same type, in a key that lives as long."""
    kind, life = client.type(key), client.pttl(key)
    client.delete(key)
    if kind == "hash":
        client.hset(key, mapping={"garbage": "x", "1:": "y", ".value": "z"})
    elif kind == "string":
        client.set(key, "garbage")
    else:
        client.zadd(key, {"garbage": 1, "more of it": 5e9, "0:": 0})
    client.pexpire(key, max(life, 20_000))


def write_one_piece_of_garbage(client: redis.Redis, key: bytes) -> None:
    """As many entries as before, if there was one."""
    write_garbage(client, key)
    if client.type(key) == "zset":
        client.zrem(key, "more of it", "0:")


def drop_half(client: redis.Redis, key: bytes, *, first: int = 0) -> None:
    """Every other entry, from the first or the second one."""
    kind = client.type(key)
    if kind == "hash" and (fields := sorted(client.hkeys(key))[first::2]):
        client.hdel(key, *fields)
    elif kind == "zset" and (members := client.zrange(key, 0, -1)[first::2]):
        client.zrem(key, *members)


def drop_other_half(client: redis.Redis, key: bytes) -> None:
    kind = client.type(key)
    if kind == "hash":
        for field in sorted(client.hkeys(key))[1::2]:
            client.hdel(key, field)
    elif kind == "zset" and client.zcard(key) > 1:
        client.zrem(key, *client.zrange(key, 0, -1)[1::2])
