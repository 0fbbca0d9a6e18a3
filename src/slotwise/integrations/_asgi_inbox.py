"""Inbox: what an ASGI server has received for one request, watched for the client's disconnect.

A server hands out its messages once, so whoever looks for ``http.disconnect`` has to keep the
others for the app. What follows a disconnect is up to the caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]

# How much of a body is kept for an app that doesn't read it yet; while there is more, a disconnect
# is not noticed. It is four times what uvicorn itself keeps for a connection.
MOST_BYTES = 256 * 1024

_DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class Inbox:
    """Stands between the server's ``receive`` and the app.

    Args:
        receive: that of the server.
        on_disconnect: called when the client has left, once, while it is watched.
    """

    __slots__ = (
        "_app_receives",
        "_arrivals",
        "_kept",
        "_on_disconnect",
        "_pump",
        "_receive",
        "_size",
        "_watched",
        "disconnected",
    )

    def __init__(
        self, receive: Callable[[], Awaitable[Message]], on_disconnect: Callable[[], None]
    ) -> None:
        self._receive = receive
        self._on_disconnect = on_disconnect
        self._kept: deque[Message] = deque()
        self._size = 0
        self._pump: asyncio.Task[None] | None = None
        self._watched = False
        self._app_receives = 0
        self._arrivals: list[asyncio.Future[None]] = []
        self.disconnected: Message | None = None

    async def receive(self) -> Message:
        """Return the next message, to the app; several of its tasks may ask at once."""
        while not self._kept:
            if self.disconnected is not None:
                return self.disconnected
            if self._pump is None:
                return await self._receive_directly()
            arrival = asyncio.get_running_loop().create_future()
            self._arrivals.append(arrival)
            await arrival
        message = self._kept.popleft()
        self._size -= len(message.get("body", b""))
        self._pump_if_watched()
        return message

    async def _receive_directly(self) -> Message:
        # Two calls of a server's receive() at a time would get in each other's way, so while the
        # app waits there nobody else does: it is the first to learn of a disconnect.
        self._app_receives += 1
        try:
            message = await self._receive()
        finally:
            self._app_receives -= 1
            self._pump_if_watched()
        self._note(message)
        return message

    def watch(self) -> None:
        """Watch for a disconnect from now on."""
        self._watched = True
        if self.disconnected is not None:
            self._on_disconnect()
        self._pump_if_watched()

    def stop(self) -> None:
        """Stop watching; what has been received is still there for the app.

        A call of the server's receive() that is under way is left alone: what it returns may be
        part of a body, and is kept.
        """
        self._watched = False

    def close(self) -> None:
        """Note that nobody asks any more."""
        self._watched = False
        if self._pump is not None:
            self._pump.cancel()

    def _pump_if_watched(self) -> None:
        if (
            self._watched
            and self._pump is None
            and not self._app_receives
            and self.disconnected is None
            and self._size < MOST_BYTES
        ):
            self._pump = asyncio.get_running_loop().create_task(self._keep_messages())

    async def _keep_messages(self) -> None:
        try:
            while self._watched and self.disconnected is None and self._size < MOST_BYTES:
                message = await self._receive()
                self._note(message)
                if self.disconnected is None:
                    self._kept.append(message)
                    self._size += len(message.get("body", b""))
                self._wake_app()
        except Exception:  # the server's own error: the app gets it when it asks
            self._watched = False
        finally:
            self._pump = None
            self._wake_app()

    def _wake_app(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            if not arrival.done():
                arrival.set_result(None)

    def _note(self, message: Message) -> None:
        if message["type"] in _DISCONNECTS and self.disconnected is None:
            self.disconnected = message
            if self._watched:
                self._on_disconnect()
