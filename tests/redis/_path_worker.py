"""A process of its own that does with a RedisBackend what it is told, line by line.

    acquire USER   prints "acquired NUMBER", or "failed ERROR"; in the background
    release        gives the oldest back: "released True"
    storm SEED     takes, holds, cancels and times out at random: "calm TAKEN WORST"

A loss prints "lost REASON" by itself. In a storm every holder counts itself, in
another database of the server, in all its tiers; WORST is by how much a tier was
ever exceeded.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

import redis.asyncio

from slotwise import AcquireTimeout
from slotwise._core.paths import TierSpec
from slotwise.redis import RedisConfig
from slotwise.redis._backend import RedisBackend


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


async def storm(paths: RedisBackend, tiers: list[TierSpec], url: str, seed: int) -> None:
    dice = random.Random(seed)
    counts = redis.asyncio.Redis.from_url(url, db=1)
    taken, worst = 0, -100

    async def hold(path: tuple[str | None, ...], timeout: float | None) -> None:
        nonlocal taken, worst
        acquired = await paths.acquire(path, timeout=timeout)
        taken += 1
        try:
            names = [f"{tier.name} {key}" for tier, key in zip(tiers, path, strict=True)]
            for tier, name in zip(tiers, names, strict=True):
                worst = max(worst, await counts.incr(name) - tier.value)
            await asyncio.sleep(dice.choice([0, 0.001, 0.01]))
            for name in names:
                await counts.decr(name)
        finally:
            await paths.release(acquired.acquisition_id)

    async def work() -> None:
        for _ in range(15):
            keys = [dice.choice("abcde"), dice.choice("mn"), None]
            path = tuple(key if tier.keyed else None for tier, key in zip(tiers, keys, strict=True))
            action = dice.random()
            if action < 0.2:
                task = asyncio.create_task(paths.acquire(path, timeout=None))
                await asyncio.sleep(dice.random() * 0.02)
                task.cancel()
                [done] = await asyncio.gather(task, return_exceptions=True)
                if not isinstance(done, BaseException):
                    await paths.release(done.acquisition_id)
            else:
                try:
                    await hold(path, 0.01 if action < 0.4 else None)
                except AcquireTimeout:
                    pass

    await paths.stats()  # connected: from now on a time-out is about slots
    await asyncio.gather(*(work() for _ in range(8)))
    await counts.aclose()
    say("calm", taken, worst)


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
        elif word == "storm":
            await storm(paths, tiers, url, int(more[0]))
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
