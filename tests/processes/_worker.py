"""A process that runs the commands on its input with a ProcessSemaphore, or a path of tiers.

    acquire [timeout [slots]]
                        prints "acquired NUMBER TOKEN", or "failed ERROR"; in the background
    release             gives the oldest back: "released True"
    id                  prints the id of the oldest
    fork                forks a child that lives on and holds nothing: "forked PID"
    child-acquire       forks one that asks for a slot: "child None", or "child NUMBER", and "ended"
    exec                becomes another program, with the same pid: "sleep"

A loss prints "lost" by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import warnings
from typing import Any

from tests._stdlib import leave

from slotwise import AcquisitionResult, Limit, Rate, Tier, Tiers
from slotwise.processes import ProcessSemaphore

# Python 3.12 warns about forks in processes with threads, which are tested here.
warnings.simplefilter("ignore", DeprecationWarning)


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


def live_on() -> None:
    for fd in (0, 1, 2):
        os.close(fd)
    time.sleep(60)
    leave()


def make_tier(name: str, value: Any, keyed: bool = False) -> Tier:
    """A list instead of a value is a rate."""
    if not isinstance(value, list):
        return Tier(name, value, keyed)
    count, per, burst = value
    return Tier(name, rate=Rate(count, per=per, burst=burst), keyed=keyed)


async def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    semaphore: Limit
    if "tiers" in options:
        tiers = [make_tier(*tier) for tier in options.pop("tiers")]
        keys, costs = options.pop("keys", {}), options.pop("costs", None)
        semaphore = Tiers(*tiers, **options).at(costs=costs, **keys)
    else:
        semaphore = ProcessSemaphore(**options)
    held: list[AcquisitionResult] = []
    tasks = set()

    async def acquire(timeout: str = "inf", slots: str = "1") -> None:
        limit = None if timeout == "inf" else float(timeout)
        try:
            acquired = await semaphore.acquire(int(slots), timeout=limit, label="worker")
        except Exception as error:
            say("failed", type(error).__name__, error)
            return
        held.append(acquired)
        say("acquired", acquired.slot_number, acquired.fencing_token)
        await acquired.lost
        held.remove(acquired)
        say("lost", acquired.lost.reason)

    def in_child() -> None:
        for acquired in held:
            assert semaphore.release_sync(acquired) is False
        tried = semaphore.try_acquire_sync()
        say("child", None if tried is None else tried.slot_number)

    loop = asyncio.get_running_loop()
    say("ready")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, *more = line.split()
        if word == "acquire":
            tasks.add(loop.create_task(acquire(*more)))
        elif word == "release":
            say("released", await semaphore.release(held.pop(0)))
        elif word == "id":
            say(held[0].acquisition_id)
        elif word == "fork":
            child = os.fork()
            if not child:
                live_on()
            say("forked", child)
        elif word == "child-acquire":
            child = os.fork()
            if not child:
                # The copied loop doesn't run in the child, which goes on without one.
                asyncio._set_running_loop(None)
                in_child()
                leave()
            os.waitpid(child, 0)  # noqa: ASYNC222 - it ends by itself
            say("ended")
        elif word == "exec":
            os.execv("/bin/sh", ["sh", "-c", "echo executed; exec sleep 60"])
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
