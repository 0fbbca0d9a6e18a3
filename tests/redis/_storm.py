"""A process that takes, holds, cancels and times out at random, for the history test."""

from __future__ import annotations

import asyncio
import random
import sys

from slotwise import AcquireTimeout
from slotwise.redis import RedisConfig, RedisSemaphore


async def main(url: str, seed: int) -> None:
    dice = random.Random(seed)
    semaphores = [
        RedisSemaphore(
            name="s",
            value=3,
            ttl=ttl,
            heartbeat_max_interval=1,
            config=RedisConfig(url),
        )
        for ttl in (None, 0.05)
    ]

    async def once() -> None:
        try:
            async with dice.choice(semaphores).cm(
                dice.choice([1, 1, 1, 2]), timeout=dice.choice([None, 0.02, 0.2])
            ):
                await asyncio.sleep(dice.choice([0, 0.002, 0.06]))
        except AcquireTimeout:
            pass

    async def work() -> None:
        for _ in range(15):
            task = asyncio.create_task(once())
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.02)
                task.cancel()
            await asyncio.wait([task])

    await asyncio.gather(*(work() for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
