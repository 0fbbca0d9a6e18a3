"""An app for real servers whose clients leave: each path does what its name says.

``/state`` says how full the limit is and what has become of the calls; ``/go`` lets those that
wait for it go on, ``/reset`` makes them wait again.
"""

from __future__ import annotations

import asyncio
import json
import os

from slotwise import MemorySemaphore
from slotwise.integrations.asgi import LimitMiddleware

LIMIT = MemorySemaphore(1, name="leaving")
go_on = asyncio.Event()
ended: list[str] = []


async def call(scope, receive, send) -> None:
    path = scope["path"]

    async def start() -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def body(chunk: bytes, more: bool = False) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": more})

    if path == "/slow":
        await go_on.wait()
        await start()
        await body(b"ok")
    elif path == "/silent":
        await start()
        await body(b"first\n", more=True)
        await go_on.wait()
        await body(b"last\n")
    elif path == "/endless":
        await start()
        while not go_on.is_set():
            await body(b"chunk\n", more=True)
            await asyncio.sleep(0.01)
        await body(b"")
    elif path == "/echo":
        data, more = b"", True
        while more:
            message = await receive()
            data += message.get("body", b"")
            more = message.get("more_body", False)
        await start()
        await body(data)


async def work(scope, receive, send) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    path = scope["path"]
    if path in ("/state", "/go", "/reset"):
        if path == "/go":
            go_on.set()
        elif path == "/reset":
            go_on.clear()
            ended.clear()
        stats = LIMIT.stats_sync()
        state = {"held": stats.acquired_slots, "waiting": stats.waiting, "ended": ended}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(state).encode()})
        return
    try:
        await call(scope, receive, send)
    except asyncio.CancelledError:
        ended.append(f"{path} cancelled")
        raise
    ended.append(f"{path} finished")


app = LimitMiddleware(
    work,
    LIMIT,
    wait=60,
    exempt=("/state", "/go", "/reset"),
    on_disconnect=os.environ.get("ON_DISCONNECT") or None,
)
