"""A process of its own that does with a RedisSemaphore what it is told, line by line.

    acquire [timeout]   prints "acquired NUMBER TOKEN", or "failed ERROR"; in the background
    release             gives the oldest back: "released True"
    block SECONDS       stops the event loop for that long: "unblocked"
    held                prints how many acquisitions are not lost: "held 1"

A loss prints "lost" by itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from slotwise.redis import RedisConfig, RedisSemaphore


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


async def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    config = RedisConfig(**options.pop("config"))
    semaphore = RedisSemaphore(config=config, **options)
    held = []
    tasks = set()

    async def acquire(timeout: float | None) -> None:
        try:
            acquired = await semaphore.acquire(timeout=timeout)
        except Exception as error:
            say("failed", type(error).__name__, error)
            return
        held.append(acquired)
        say("acquired", acquired.slot_number, acquired.fencing_token)
        await acquired.lost
        held.remove(acquired)
        say("lost", acquired.lost.reason)

    loop = asyncio.get_running_loop()
    say("ready")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, *more = line.split()
        if word == "acquire":
            task = loop.create_task(acquire(float(more[0]) if more else None))
            tasks.add(task)
        elif word == "release":
            say("released", await semaphore.release(held.pop(0)))
        elif word == "block":
            time.sleep(float(more[0]))  # noqa: ASYNC251 - that is the point
            say("unblocked")
        elif word == "held":
            say("held", len(held))
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
