"""LimitMiddleware: a limit in front of any ASGI app, for requests and WebSockets.

What a refusal says is in `_refusal`; `_asgi_inbox` notices that a client left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import Enum, auto
from typing import Any, Literal

from slotwise._core.arguments import check_flag, check_seconds
from slotwise._core.limit import Limit
from slotwise._core.redaction import redacted_repr
from slotwise._core.results import AcquisitionResult
from slotwise.integrations._asgi_inbox import Inbox
from slotwise.integrations._exempt import EXEMPT, exempt_paths
from slotwise.integrations._interruption import Interruption
from slotwise.integrations._refusal import Refusal, RequestTimes, Troubles, draining, refusal_of
from slotwise.integrations._request_slot import NO_SLOT
from slotwise.integrations._sigterm import SigtermListener
from slotwise.integrations._source import KeyFunction, LimitArgument, limit_finder

__all__ = ["LimitMiddleware"]

Scope = Any  # made by the server: a mutable mapping
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class LimitMiddleware:
    """Lets requests into an ASGI app while there are slots, and refuses the others.

    A request holds its slot until the last chunk of its response, or until the app's call has
    ended; a WebSocket until the call has ended. A client that leaves loses its place in line. If
    it leaves once its response has begun, the app's call is cancelled, and the slot is free
    when that has ended.

    Args:
        app: the ASGI app.
        limit: a Limit; or a function of the scope that returns one, or None for unlimited; or
            Tiers, with ``key``.
        key: a function of the scope that returns the keys for `Tiers.at`, as a dict; None for
            unlimited.
        wait: how long a request may wait for a slot, in seconds; None forever.
        exempt: paths that are never limited.
        observe: let requests without a slot in too, and count them in ``would_refuse``.
        on_disconnect: "cancel" cancels the app's call even before its response has begun.
        drain: at SIGTERM, refuse the requests that wait, as `drain` does.
    """

    def __init__(
        self,
        app: App,
        limit: LimitArgument,
        *,
        key: KeyFunction | None = None,
        wait: float | None = 0.0,
        exempt: Collection[str] = EXEMPT,
        observe: bool = False,
        on_disconnect: Literal["cancel"] | None = None,
        drain: bool = True,
    ) -> None:
        if on_disconnect not in (None, "cancel"):
            raise ValueError(
                f"on_disconnect must be None or 'cancel', not {redacted_repr(on_disconnect)}"
            )
        self._app = app
        self._find = limit_finder(limit, key)
        self._wait = check_seconds("wait", wait, zero=True)
        self._exempt = exempt_paths(exempt)
        self._observe = check_flag("observe", observe)
        self._cancels_early = on_disconnect == "cancel"
        self._times = RequestTimes()
        self._troubles = Troubles()
        self._waiting: set[Interruption] = set()
        self._releasing: set[asyncio.Future[None]] = set()
        self._sigterm = SigtermListener(self.drain) if check_flag("drain", drain) else None
        self._heard_first_request = False
        self.draining = False
        self.refused = 0
        self.would_refuse = 0

    def drain(self) -> None:
        """Refuse the requests that wait, with 503, and let none wait from now on.

        Those that have slots finish. It may be called in any thread.
        """
        self.draining = True
        for interruption in list(self._waiting):
            interruption.interrupt("drain")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if kind not in ("http", "websocket") or self._is_exempt(scope):
            await self._app(scope, receive, send)
            return
        if not self._heard_first_request:
            self._heard_first_request = True
            if self._sigterm is not None:  # some servers install their handler late
                self._sigterm.install()
        limit = self._find(scope)
        if limit is None:
            await self._app(scope, receive, send)
        else:
            await _Exchange(self, limit, scope, receive, send).run()

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sigterm is None:
            await self._app(scope, receive, send)
            return
        self._sigterm.install()
        try:
            await self._app(scope, receive, send)
        finally:
            self._sigterm.remove()

    def _is_exempt(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path in self._exempt or path.removeprefix(scope.get("root_path", "")) in self._exempt


# Watch for a disconnect once a response has taken this many seconds.
_SHORT_RESPONSE = 0.03


class _Phase(Enum):
    """How far an exchange is."""

    ENTERING = auto()  # it may wait in line
    RUNNING = auto()  # the app's call, before its response has begun
    RESPONDING = auto()
    COMPLETE = auto()  # the last chunk is being sent, or the call has ended


class _Exchange:
    """One request, or one WebSocket, from its arrival until its slot is released."""

    __slots__ = (
        "_acquired",
        "_granted_at",
        "_inbox",
        "_interruption",
        "_limit",
        "_middleware",
        "_phase",
        "_scope",
        "_send",
        "_trailers",
        "_watch",
    )

    def __init__(
        self,
        middleware: LimitMiddleware,
        limit: Limit,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._middleware = middleware
        self._limit = limit
        self._scope = scope
        self._send = send
        self._inbox = Inbox(receive, self._client_left)
        self._interruption = Interruption()
        self._phase = _Phase.ENTERING
        self._acquired: AcquisitionResult | None = None
        self._granted_at = 0.0
        self._trailers = False
        self._watch: asyncio.Handle | None = None  # the coming call of `Inbox.watch`

    async def run(self) -> None:
        try:
            refusal = await self._enter()
            if self._inbox.disconnected is not None:
                return
            if refusal is not None:
                await self._refuse(refusal)
            elif self._scope["type"] == "websocket":
                # The app itself learns that the client left, and ends.
                await self._middleware._app(self._scope, self._inbox.receive, self._send)
            else:
                await self._respond()
        except BaseException as error:
            if self._acquired is not None:
                self._acquired._leave_with(type(error))
            raise
        finally:
            self._inbox.close()
            await self._complete()

    # ------------------------------------------------------------------ entering

    async def _enter(self) -> Refusal | None:
        """Get a slot; return the refusal if there is none and that matters."""
        middleware = self._middleware
        error: Exception | None = None
        try:
            if middleware._wait == 0 or middleware._observe or middleware.draining:
                await self._try()
            else:
                await self._wait_in_line(middleware._wait)
        except NO_SLOT as no_slot:
            error = no_slot
        if self._acquired is not None:
            self._granted_at = time.monotonic()
            return None
        if middleware._observe:
            middleware._troubles.note(error)
            middleware.would_refuse += 1
            return None
        if self._inbox.disconnected is not None:
            return None
        if middleware.draining and error is None:
            return draining()
        return await refusal_of(self._limit, error, middleware._times, middleware._troubles)

    async def _try(self) -> None:
        self._acquired = await self._limit.try_acquire()
        releasing = self._middleware._releasing
        if self._acquired is None and releasing:
            # A client may ask again before the server with the slots has heard that its last
            # request is over.
            await asyncio.wait(list(releasing))
            self._acquired = await self._limit.try_acquire()

    async def _wait_in_line(self, seconds: float | None) -> None:
        """Wait for a slot, unless that is interrupted."""
        middleware, interruption = self._middleware, self._interruption
        middleware._waiting.add(interruption)
        # Soon, not now: a request that gets a slot at once needs no watch.
        self._watch = asyncio.get_running_loop().call_soon(self._inbox.watch)
        try:
            if not middleware.draining:  # or meanwhile, in another thread
                self._acquired = await self._limit.acquire(timeout=seconds)
        except asyncio.CancelledError:
            if not interruption.ended():
                raise
        finally:
            middleware._waiting.discard(interruption)
            interruption.ended()
            self._stop_watching()

    # ----------------------------------------------------------------- refusing

    async def _refuse(self, refusal: Refusal) -> None:
        self._middleware.refused += 1
        kind = "http"
        if self._scope["type"] == "websocket":
            kind = "websocket.http"
            await self._inbox.receive()  # websocket.connect
            if "websocket.http.response" not in (self._scope.get("extensions") or {}):
                # 1013: try again later. The server turns it into a status of its own.
                await self._send({"type": "websocket.close", "code": 1013, "reason": ""})
                return
        fields = [
            (name.lower().encode(), value.encode()) for name, value in refusal.all_fields.items()
        ]
        await self._send(
            {"type": f"{kind}.response.start", "status": refusal.status, "headers": fields}
        )
        body = b"" if self._scope.get("method") == "HEAD" else refusal.body
        await self._send({"type": f"{kind}.response.body", "body": body})

    # ---------------------------------------------------------------- responding

    async def _respond(self) -> None:
        interruption = self._interruption = Interruption()
        self._phase = _Phase.RUNNING
        if self._middleware._cancels_early:
            self._inbox.watch()
        try:
            await self._middleware._app(self._scope, self._inbox.receive, self._send_response)
        except asyncio.CancelledError:
            if not interruption.ended():
                raise
            if self._acquired is not None:
                self._acquired.ignored()  # the client left, which says nothing about the app
        finally:
            interruption.ended()

    async def _send_response(self, message: Mapping[str, Any]) -> None:
        """Send for the app."""
        kind = message["type"]
        if kind == "http.response.start":
            self._phase = _Phase.RESPONDING
            self._trailers = message.get("trailers", False)
            # Not now: most apps send their whole body next, and need no watch. A client that left
            # before that must not keep them from finishing.
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(_SHORT_RESPONSE, self._inbox.watch)
        elif self._is_last(message):
            # The app has done its work: whether the client stays for the last chunk, or is still
            # there during what comes after it, makes no difference.
            self._phase = _Phase.COMPLETE
            self._stop_watching()
            self._interruption.give_up()
            await self._send(message)
            await self._complete()
            return
        await self._send(message)

    def _is_last(self, message: Mapping[str, Any]) -> bool:
        """Whether a message ends the response."""
        kind = message["type"]
        if kind in ("http.response.body", "http.response.zerocopysend"):
            return not message.get("more_body") and not self._trailers
        if kind == "http.response.trailers":
            return not message.get("more_trailers")
        return bool(kind == "http.response.pathsend") and not self._trailers

    async def _complete(self) -> None:
        """Release the slot: whatever the app does from now on, it needs none."""
        self._phase = _Phase.COMPLETE
        self._stop_watching()
        acquired, self._acquired = self._acquired, None
        if acquired is None:
            return
        middleware = self._middleware
        middleware._times.add(time.monotonic() - self._granted_at)
        if not self._limit._does_io:
            await self._limit._release_on_exit(acquired)
            return
        underway = asyncio.get_running_loop().create_future()
        middleware._releasing.add(underway)
        try:
            await self._limit._release_on_exit(acquired)
        finally:
            middleware._releasing.discard(underway)
            underway.set_result(None)

    # ------------------------------------------------------- the client's leaving

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._inbox.stop()

    def _client_left(self) -> None:
        if self._phase is not _Phase.RUNNING or self._middleware._cancels_early:
            self._interruption.interrupt("disconnect")
