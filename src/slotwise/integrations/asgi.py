"""LimitMiddleware: a limit in front of any ASGI app, for requests and WebSockets.

What happens to a request is in `_asgi_exchange`; what a refusal says is in `_admission`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Literal

from slotwise._core.arguments import check_flag
from slotwise._core.redaction import redacted_repr
from slotwise.integrations import _sigterm
from slotwise.integrations._admission import EXEMPT, Admission, exempt_paths
from slotwise.integrations._asgi_exchange import Exchange, Receive, Scope, Send
from slotwise.integrations._source import KeyFunction, LimitArgument

__all__ = ["LimitMiddleware"]

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
        self._admission = Admission(limit, key, wait, observe=observe)
        self._exempt = exempt_paths(exempt)
        self._cancels_early = on_disconnect == "cancel"
        self._waiting: set[Exchange] = set()
        self._releasing: set[asyncio.Future[None]] = set()
        self._drains = check_flag("drain", drain)
        self._heard_first_request = False
        self.draining = False

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return self._admission.refused

    @property
    def would_refuse(self) -> int:
        """How many requests would have been refused, with ``observe``."""
        return self._admission.would_refuse

    def drain(self) -> None:
        """Refuse the requests that wait, with 503, and let none wait from now on.

        Those that have slots finish. It may be called in any thread.
        """
        self.draining = True
        for exchange in list(self._waiting):
            exchange.interrupt()

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
            if self._drains:  # some servers install their handler late
                _sigterm.handler.add(self.drain)
        limit = self._admission.find(scope)
        if limit is None:
            await self._app(scope, receive, send)
        else:
            await Exchange(self, limit, scope, receive, send).run()

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._drains:
            _sigterm.handler.add(self.drain)
        try:
            await self._app(scope, receive, send)
        finally:
            _sigterm.handler.remove(self.drain)

    def _is_exempt(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path in self._exempt or path.removeprefix(scope.get("root_path", "")) in self._exempt
