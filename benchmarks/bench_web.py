"""What LimitMiddleware adds to a request, in memory, without a server around it.

The first race is by CPU time, against the bare app; its bar is in microseconds, so it is checked
by the difference. The second is by the wall clock: the median of requests that take 2 ms.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from benchmarks._race import Race, start
from slotwise import MemorySemaphore
from slotwise.integrations.asgi import LimitMiddleware

QUICK = "--quick" in sys.argv
REPEATS = 5 if QUICK else 15
REQUESTS = 2000
MOST_US = 60

App = Callable[[Any, Any, Any], Awaitable[None]]


async def quick(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def slow(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.002)
    await quick(scope, receive, send)


SCOPE = {"type": "http", "path": "/", "method": "GET", "headers": []}


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(_message: Any) -> None: ...


def cpu(app: App) -> Callable[[], float]:
    async def serve() -> float:
        begun = time.process_time()
        for _ in range(REQUESTS):
            await app(SCOPE, receive, send)
        return (time.process_time() - begun) / REQUESTS

    return lambda: asyncio.run(serve())


def p50(app: App) -> Callable[[], float]:
    async def serve() -> float:
        times = []
        for _ in range(200):
            begun = time.perf_counter()
            await app(SCOPE, receive, send)
            times.append(time.perf_counter() - begun)
        return median(times)

    return lambda: asyncio.run(serve())


def limited(app: App) -> LimitMiddleware:
    return LimitMiddleware(app, MemorySemaphore(20, name="bench"))


def main() -> int:
    added = Race(
        "a request that gets a slot at once, by CPU time (x the bare app)",
        {"bare app": cpu(quick), "LimitMiddleware": cpu(limited(quick))},
        base="bare app",
        ours="LimitMiddleware",
        bar=float("inf"),
        repeats=REPEATS,
    )
    added.run()
    us = (added.medians["LimitMiddleware"] - added.medians["bare app"]) * 1e6
    print(f"  added: {us:.1f} µs  <- bar {MOST_US}: {'passed' if us <= MOST_US else 'MISSED'}")
    held = Race(
        "p50 of an app that takes 2 ms",
        {"bare app": p50(slow), "LimitMiddleware": p50(limited(slow))},
        base="bare app",
        ours="LimitMiddleware",
        bar=1.15,
        repeats=REPEATS,
    )
    return 0 if held.run() and us <= MOST_US else 1


if __name__ == "__main__":
    start(main)
