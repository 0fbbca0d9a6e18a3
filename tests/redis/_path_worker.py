"""A process of its own that does with a RedisBackend what it is told, line by line.

    acquire USER   prints "acquired NUMBER", or "failed ERROR"; in the background
    release        gives the oldest back: "released True"

A loss prints "lost REASON" by itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from slotwise._core.paths import TierSpec
from slotwise.redis import RedisConfig
from slotwise.redis._backend import RedisBackend


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


async def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    url = options.pop("url")
    tiers = [TierSpec(name, value, keyed) for name, value, keyed in options.pop("tiers")]
    paths = RedisBackend(tiers, config=RedisConfig(url), **options)
    held = []
    tasks = set()

    async def acquire(user: str) -> None:
        try:
            acquired = await paths.acquire((user, None), timeout=None)
        except Exception as error:
            say("failed", type(error).__name__, error)
            return
        held.append(acquired)
        say("acquired", acquired.slot_number)
        await acquired.lost
        held.remove(acquired)
        say("lost", acquired.lost.reason)

    loop = asyncio.get_running_loop()
    say("ready")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, *more = line.split()
        if word == "acquire":
            tasks.add(loop.create_task(acquire(more[0])))
        elif word == "release":
            say("released", await paths.release(held.pop(0).acquisition_id))
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
