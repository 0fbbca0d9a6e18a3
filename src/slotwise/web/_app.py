"""App: the page as an ASGI application.

What is shown comes from `_feed`; changes are made by `_steering`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from slotwise._admin.snapshot import Subject
from slotwise.errors import SlotwiseError
from slotwise.integrations import _sigterm
from slotwise.web import _steering
from slotwise.web._access import Access
from slotwise.web._feed import Feed

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[str, str]]

# A server that shuts down waits for open streams, so none lasts longer; browsers reconnect.
_STREAM_SECONDS = 20.0
_EVENT_SECONDS = 1.0
_FIRST_SECONDS = 1.0  # a page that nobody sees is worse than one without limits

_MOST_BODY = 10_000  # bytes; a request has a name and a number


class App:
    """One page for one machine or server; see `slotwise.web.app`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        allow_steer: bool = False,
        hosts: Iterable[str] | None = None,
    ) -> None:
        """``hosts``: the names that a Host header may have, None for any."""
        self._access = Access(token, hosts)
        self._allow_steer = allow_steer
        self._feed = Feed(url)
        self._ending = False
        self._streams: set[_Stream] = set()  # the open ones

    def open(self) -> None:
        """Import and check what the url needs; otherwise the first request does that."""
        _ = self._feed.backend

    def end_streams(self) -> None:
        """End the streams of open pages, because the server shuts down; in any thread."""
        self._ending = True
        for stream in list(self._streams):
            with suppress(RuntimeError):  # its loop is closed
                stream.loop.call_soon_threadsafe(stream.end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(Request(scope, receive), Reply(scope, send))
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, request: Request, reply: Reply) -> None:
        refusal = self._access.refusal(request)
        if refusal is not None:
            await reply.text(*refusal)
            return
        routes = {
            "/": ("GET", self._page),
            "/snapshot": ("GET", self._snapshot),
            "/events": ("GET", self._events),
            "/steer": ("POST", self._steer),
        }
        if request.path == "":  # relative links need the slash
            await reply.redirect(f"{request.root}/")
            return
        if request.path not in routes:
            await reply.text(404, "not found")
            return
        method, answer = routes[request.path]
        if request.method not in (method, "HEAD" if method == "GET" else method):
            await reply.text(405, f"use {method}", [("allow", method)])
            return
        await answer(request, reply)

    # -------------------------------------------------------------------- reading

    async def _page(self, request: Request, reply: Reply) -> None:
        token = request.query.get("token")
        if token is not None:
            cookie = self._access.cookie(request)
            await reply.redirect(f"{request.root}/", [("set-cookie", cookie)] if cookie else [])
            return
        html = page().replace("{nonce}", reply.nonce)
        await reply.whole("text/html", html.replace("{first}", await self._first_snapshot()))

    async def _first_snapshot(self) -> str:
        """Return a snapshot as JSON that can stand in HTML; null if it takes long."""
        looking = asyncio.ensure_future(self._shown(None, ""))
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([looking], timeout=_FIRST_SECONDS)
        if not looking.done():
            return "null"
        try:
            shown = looking.result().decode()
        except SlotwiseError as error:
            shown = json.dumps({"error": str(error)})
        return shown.replace("<", "\\u003c")  # names are not markup

    async def _snapshot(self, request: Request, reply: Reply) -> None:
        chosen, search = request.chosen, request.query.get("q", "")
        try:
            await reply.whole("application/json", await self._shown(chosen, search))
        except SlotwiseError as error:
            await reply.json(503, {"error": str(error)})

    async def _events(self, request: Request, reply: Reply) -> None:
        await reply.begin("text/event-stream; charset=utf-8")
        if request.method == "HEAD":
            await reply.write(b"", more=False)
            return
        loop = asyncio.get_running_loop()
        stream = _Stream(loop, loop.create_future())
        left = asyncio.ensure_future(request.left())
        left.add_done_callback(lambda _: stream.end())
        self._streams.add(stream)
        # A mounted application isn't told that its server shuts down, and would keep it waiting.
        _sigterm.handler.add(self.end_streams)
        try:
            await reply.write(b"retry: 500\n\n")
            await self._send_events(request, reply, stream.ended)
            await reply.write(b"", more=False)
        finally:
            left.cancel()
            self._streams.discard(stream)
            if not self._streams:
                _sigterm.handler.remove(self.end_streams)

    async def _send_events(
        self, request: Request, reply: Reply, ended: asyncio.Future[None]
    ) -> None:
        """Send a snapshot a second until the client has left, or the server ends."""
        chosen, search = request.chosen, request.query.get("q", "")
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _STREAM_SECONDS
        while not self._ending and loop.time() < ends_at:
            looking = asyncio.ensure_future(self._shown(chosen, search))
            either: list[asyncio.Future[Any]] = [looking, ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                looking.cancel()
                return
            try:
                shown = looking.result()
            except SlotwiseError as error:
                shown = json.dumps({"error": str(error)}).encode()
            await reply.write(b"data: " + shown + b"\n\n")
            await asyncio.wait([ended], timeout=_EVENT_SECONDS)

    async def _shown(self, chosen: Subject | None, search: str) -> bytes:
        """Return the snapshot as JSON."""
        look = await self._feed.look(chosen)
        return json.dumps({**look.as_dict(chosen, search), "steer": self._allow_steer}).encode()

    # ------------------------------------------------------------------- steering

    async def _steer(self, request: Request, reply: Reply) -> None:
        code, answer = await self._steered(request)
        await reply.json(code, answer if isinstance(answer, dict) else {"error": answer})

    async def _steered(self, request: Request) -> tuple[int, dict[str, Any] | str]:
        """Make a change; return the status and the answer, or what is wrong with the request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if not self._allow_steer:
            return 403, "this page is read-only"
        if not self._access.is_same_origin(request):
            return 403, "the request came from a page of another origin"
        if kind != "application/json":
            return 415, "send application/json"
        try:
            wanted = json.loads(await request.body(_MOST_BODY))
        except (ValueError, RecursionError):  # the latter if it is nested too deeply
            return 400, "the body is not JSON, or is too long"
        return await asyncio.to_thread(_steering.steer, self._feed.backend, wanted, request.who)


@dataclass(frozen=True, slots=True)
class _Stream:
    """An open stream, and the future that ends it."""

    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[None]

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Request:
    """One request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.root: str = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        # Some servers and frameworks leave the root in the path, others don't.
        self.path = path.removeprefix(self.root) if path.startswith(self.root) else path
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope.get("headers", [])
        }
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        self.query = {name: values[-1] for name, values in query.items()}
        self.is_secure = scope.get("scheme") == "https"

    @property
    def chosen(self) -> Subject | None:
        """The limit that is shown in detail; with ``kind=tiers``, not a semaphore."""
        name = self.query.get("name")
        if name is None:
            return None
        return Subject(name, "" if self.query.get("kind") == "tiers" else None)

    @property
    def who(self) -> str:
        """The client, for the log: the user, if one has been authenticated, and the address."""
        user = self._scope.get("user")
        name = getattr(user, "display_name", None) or getattr(user, "username", None)
        host = (self._scope.get("client") or ("?", 0))[0]
        return f"{name} at {host}" if name else str(host)

    async def body(self, most: int) -> bytes:
        """Return the body; raise ValueError if it is longer than ``most``."""
        body, more = b"", True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ValueError("the client has disconnected")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most:
                raise ValueError("too long")
        return body

    async def left(self) -> None:
        """Return when the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Reply:
    """Sends responses, each with the security headers for browsers."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._has_body = scope["method"] != "HEAD"
        self.nonce = secrets.token_urlsafe(16)

    async def begin(self, content_type: str, code: int = 200, more: Headers = ()) -> None:
        policy = (
            f"default-src 'none'; script-src 'nonce-{self.nonce}'; style-src 'nonce-{self.nonce}';"
            " connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none';"
            " form-action 'none'"
        )
        headers = [
            ("content-type", content_type),
            ("content-security-policy", policy),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-store"),
            *more,
        ]
        await self._send(
            {
                "type": "http.response.start",
                "status": code,
                "headers": [(name.encode(), value.encode()) for name, value in headers],
            }
        )

    async def write(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def whole(
        self, kind: str, body: str | bytes, code: int = 200, more: Headers = ()
    ) -> None:
        data = body if isinstance(body, bytes) else body.encode()
        length = "content-length", str(len(data))
        await self.begin(f"{kind}; charset=utf-8", code, [length, *more])
        await self.write(data if self._has_body else b"", more=False)

    async def text(self, code: int, words: str, more: Headers = ()) -> None:
        await self.whole("text/plain", f"{words}\n", code, more)

    async def json(self, code: int, data: Any) -> None:
        await self.whole("application/json", json.dumps(data), code)

    async def redirect(self, where: str, more: Headers = ()) -> None:
        await self.text(303, "see there", [("location", where), *more])


@cache
def page() -> str:
    """Return the page; ``{nonce}`` stands for the nonce of each response."""
    folder = files("slotwise.web")
    text, style, script = (
        (folder / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")
    )
    return text.replace("{style}", style).replace("{script}", script)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
