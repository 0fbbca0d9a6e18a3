"""Ask an ASGI application, without a server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Any,
    path: str = "/",
    method: str = "GET",
    *,
    root: str = "",
    body: bytes = b"",
    until: bytes | None = None,
    **headers: str,
) -> Answer:
    """Return the answer; of a stream what comes until there is ``until`` in it."""
    path, _, query = path.partition("?")
    given = {"host": "127.0.0.1:8765", **{k.replace("_", "-"): v for k, v in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": root + path,
        "root_path": root,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "scheme": "http",
        "client": ("127.0.0.1", 4711),
    }
    answer = Answer(0, {}, b"")
    enough = asyncio.Event()
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await enough.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.code = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]
            if until is not None and until in answer.body:
                enough.set()

    async with asyncio.timeout(30):
        await app(scope, receive, send)
    return answer
