"""An app for several workers: it looks in a directory how many requests are worked on."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

from slotwise import semaphore
from slotwise.integrations.asgi import LimitMiddleware

PLACES = Path(os.environ["PLACES"])
VALUE = 5
_numbers = itertools.count()


async def work(scope, receive, send) -> None:
    if scope["type"] == "lifespan":
        return
    place = PLACES / f"{os.getpid()}-{next(_numbers)}"
    place.touch()
    try:
        over = len(os.listdir(PLACES)) > VALUE  # noqa: PTH208
        await asyncio.sleep(0.005)
    finally:
        place.unlink()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"over" if over else b"ok"})


app = LimitMiddleware(work, semaphore("workers", VALUE, url=os.environ["LIMIT_URL"]), wait=0.5)
