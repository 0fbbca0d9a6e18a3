"""Run scripts at a cost that thousands of steps can afford."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import redis
from hiredis import pack_command


def evaluate(client: redis.Redis, source: str | bytes, count: int, *given: Any) -> Any:
    """Return what a script replies; ``given`` is its keys, as many as ``count``, then the rest.

    The source is sent only to a server that has not seen it.
    """
    try:
        return evaluate_sha(client, _digest(source), count, *given)
    except redis.exceptions.NoScriptError:
        return client.eval(source, count, *given)


def evaluate_sha(client: redis.Redis, sha: str | bytes, count: int, *given: Any) -> Any:
    """Return what a script replies that the server has.

    On the only connection of a client. For one from its pool, redis-py needs three times the
    processor, which is most of what a step of a long sequence costs.
    """
    connection = client.connection
    if connection is None:
        return client.evalsha(sha, count, *given)
    connection.send_packed_command([pack_command(("EVALSHA", sha, count, *given))])
    return connection.read_response()


@lru_cache(maxsize=1000)  # some tests change the sources
def _digest(source: str | bytes) -> str:
    text = source.encode() if isinstance(source, str) else source
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


_KEYS_THAT_STAY = """
local stay = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) <= 0 then
    stay[#stay + 1] = key
  end
end
return stay
"""


def keys_that_stay(client: redis.Redis) -> list[str]:
    """Return the keys that never expire."""
    found: list[str] = evaluate(client, _KEYS_THAT_STAY, 0)
    return found


_READ = """
local found = {}
for place, key in ipairs(KEYS) do
  if redis.call('TYPE', key).ok == 'hash' then
    found[place] = redis.call('HGETALL', key)
  else
    found[place] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  end
  found[#KEYS + place] = redis.call('PTTL', key)
end
return found
"""


def read_keys(client: redis.Redis, *keys: str | bytes) -> tuple[list[dict[str, str]], list[int]]:
    """Return the fields of hashes, or the members of sorted sets with their scores, and PTTLs."""
    found = evaluate(client, _READ, len(keys), *keys)
    contents = [dict(zip(each[::2], each[1::2], strict=True)) for each in found[: len(keys)]]
    return contents, found[len(keys) :]
