"""Uses ever new names on all drivers, and prints its size now and then, one JSON object a line.

python -m tests.soak._changing_names URL FOLDER SECONDS
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

import redis

from slotwise import MemorySemaphore, ProcessSemaphore, RedisConfig, RedisSemaphore, Tier, Tiers

EVERY = 5.0  # seconds between two lines
PAUSE = 0.02  # between two names, so that those of a minute are some thousands


def size(folder: Path, server: redis.Redis) -> dict[str, int]:
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    [resident] = [line.split()[1] for line in status if line.startswith("VmRSS")]
    keys = [*server.scan_iter(count=1000)]
    with server.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.pttl(key)
        lives = pipe.execute()
    return {
        "descriptors": len([*Path("/proc/self/fd").iterdir()]),
        "threads": len([*Path("/proc/self/task").iterdir()]),
        "resident KiB": int(resident),
        "files": len([*folder.rglob("*")]),
        "keys": len(keys),
        "keys without expiry": lives.count(-1),
    }


async def main(url: str, folder: Path, seconds: float) -> None:
    config = RedisConfig(url)
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 5), name="tiers", url=config)
    begun = time.monotonic()
    due, number = begun + EVERY, 0
    with redis.Redis.from_url(url) as server:
        while (now := time.monotonic()) < begun + seconds:
            name = f"name {number}"
            for semaphore in (
                MemorySemaphore(1, name=name),
                ProcessSemaphore(1, name=name, directory=folder),
                RedisSemaphore(1, name=name, config=config),
            ):
                async with semaphore.cm():
                    pass
            async with tiers.cm(tenant=name):
                number += 1
            await asyncio.sleep(PAUSE)
            if now >= due:
                due += EVERY
                line = {"at": now - begun, "names": number, **size(folder, server)}
                print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
