"""Run the source of a script, and send it only to a server that has not seen it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import redis


def evaluate(client: redis.Redis, source: str | bytes, count: int, *given: Any) -> Any:
    """Return what a script replies; ``given`` is its keys, as many as ``count``, then the rest."""
    try:
        return client.evalsha(_digest(source), count, *given)
    except redis.exceptions.NoScriptError:
        return client.eval(source, count, *given)


@lru_cache(maxsize=1000)  # some tests change the sources
def _digest(source: str | bytes) -> str:
    text = source.encode() if isinstance(source, str) else source
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()
