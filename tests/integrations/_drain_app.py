"""An app for real servers: ``/slow`` ends when a file exists, ``/healthz`` says how full it is."""

from __future__ import annotations

import asyncio
import json
import os

from slotwise import MemorySemaphore
from slotwise.integrations.asgi import LimitMiddleware

LIMIT = MemorySemaphore(1, name="drained")
GO = os.environ.get("GO", "")


async def work(scope, receive, send) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b"ok"
    if scope["path"] == "/healthz":
        stats = LIMIT.stats_sync()
        body = json.dumps([stats.acquired_slots, stats.waiting]).encode()
    if scope["path"] == "/slow":
        while not os.path.exists(GO):  # noqa: ASYNC240, PTH110
            await asyncio.sleep(0.01)
    fields = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})


# Two of them: both hear of SIGTERM, and the server does.
app = LimitMiddleware(LimitMiddleware(work, LIMIT, wait=60), MemorySemaphore(100), wait=60)
