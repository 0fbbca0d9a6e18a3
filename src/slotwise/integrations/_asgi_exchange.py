"""Exchange: one request or WebSocket of an ASGI server, until its slot is released.

It stands between the server and the app. A server hands out its messages once, so whoever looks for
a client's disconnect has to keep the others for the app.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slotwise._core.limit import Limit
from slotwise.integrations._admission import NO_SLOT, Refusal, RequestSlot, draining

if TYPE_CHECKING:
    from slotwise.integrations.asgi import LimitMiddleware

Message = dict[str, Any]
Scope = Any  # made by the server: a mutable mapping
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

# How much of a body is kept for an app that doesn't read it yet; while there is more, a disconnect
# is not noticed. It is four times what uvicorn itself keeps for a connection.
_MOST_BYTES = 256 * 1024
# Watch for a disconnect once a response has taken this many seconds.
_SHORT_RESPONSE = 0.03

_DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class Exchange:
    """One request, or one WebSocket; to be made in the task that calls `run`."""

    def __init__(
        self,
        middleware: LimitMiddleware,
        limit: Limit,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._middleware = middleware
        self._admission = middleware._admission
        self._limit = limit
        self._scope = scope
        self._receive = receive
        self._send = send
        self._may_leave = True  # the client, and then the task is interrupted
        self._slot = RequestSlot()
        # Its interruption, which ends what the task is doing and not the task.
        self._task = task
        self._cancelling = task.cancelling()
        self._interruptible = False
        self._interrupted = False
        # What was received ahead of the app, by a task that watches for a disconnect.
        self._kept: deque[Message] = deque()
        self._size = 0
        self._pump: asyncio.Task[None] | None = None
        self._watched = False
        self._watch: asyncio.Handle | None = None  # the coming call of `_begin_to_watch`
        self._app_receives = 0
        self._arrived = asyncio.Event()
        self._disconnected: Message | None = None

    async def run(self) -> None:
        try:
            refusal = await self._enter()
            if self._disconnected is not None:
                return
            if refusal is not None:
                await self._refuse(refusal)
            elif self._scope["type"] == "websocket":
                # The app itself learns that the client left, and ends.
                await self._middleware._app(self._scope, self._receive_for_app, self._send)
            else:
                await self._respond()
        except BaseException as error:
            self._slot.leave_with(error)
            raise
        finally:
            if self._pump is not None:
                self._pump.cancel()
            await self._complete()

    # ------------------------------------------------------------------ entering

    async def _enter(self) -> Refusal | None:
        """Get a slot; return the refusal if there is none and that matters."""
        middleware = self._middleware
        error: Exception | None = None
        try:
            if self._admission.wait == 0 or middleware.draining:
                await self._try()
            else:
                await self._wait_in_line()
        except NO_SLOT as no_slot:
            error = no_slot
        if self._slot.acquired is not None or self._disconnected is not None:
            return None
        if middleware.draining and error is None and not self._admission.observe:
            self._admission.refused += 1
            return draining()
        return await self._admission.refusal(self._limit, error)

    async def _try(self) -> None:
        acquired = await self._limit.try_acquire()
        releasing = self._middleware._releasing
        if acquired is None and releasing:
            # A client may ask again before the server with the slots has heard that its last
            # request is over.
            await asyncio.wait(list(releasing))
            acquired = await self._limit.try_acquire()
        self._slot = RequestSlot(self._limit, acquired, self._admission)

    async def _wait_in_line(self) -> None:
        """Wait for a slot, unless that is interrupted."""
        middleware = self._middleware
        middleware._waiting.add(self)
        self._interruptible = True
        # Soon, not now: a request that gets a slot at once needs no watch.
        self._watch = asyncio.get_running_loop().call_soon(self._begin_to_watch)
        try:
            if not middleware.draining:  # or meanwhile, in another thread
                acquired = await self._limit.acquire(timeout=self._admission.wait)
                self._slot = RequestSlot(self._limit, acquired, self._admission)
        except asyncio.CancelledError:
            if not self._was_interrupted():
                raise
        finally:
            middleware._waiting.discard(self)
            self._was_interrupted()
            self._stop_watching()

    # ----------------------------------------------------------------- refusing

    async def _refuse(self, refusal: Refusal) -> None:
        kind = "http"
        if self._scope["type"] == "websocket":
            kind = "websocket.http"
            await self._receive_for_app()  # websocket.connect
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
        self._interruptible = True
        self._may_leave = self._middleware._cancels_early
        if self._may_leave:
            self._begin_to_watch()
        try:
            await self._middleware._app(self._scope, self._receive_for_app, self._send_for_app)
        except asyncio.CancelledError:
            if not self._was_interrupted():
                raise
            if self._slot.acquired is not None:
                self._slot.acquired.ignored()  # the client left, which says nothing about the app
        finally:
            self._was_interrupted()

    async def _send_for_app(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._may_leave = True
            # Not now: most apps send their whole body next, and need no watch. A client that left
            # before that must not keep them from finishing.
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(_SHORT_RESPONSE, self._begin_to_watch)
        elif kind == "http.response.body" and not message.get("more_body"):
            # The app has done its work: whether the client stays for the last chunk, or is still
            # there during what comes after it, makes no difference.
            self._stop_watching()
            if not self._interrupted:
                self._interruptible = False
            await self._send(message)
            await self._complete()
            return
        await self._send(message)

    async def _complete(self) -> None:
        """Release the slot: whatever the app does from now on, it needs none."""
        self._stop_watching()
        if self._slot.acquired is None:
            return
        underway = asyncio.get_running_loop().create_future()
        self._middleware._releasing.add(underway)
        try:
            await self._slot.close_async()
        finally:
            self._middleware._releasing.discard(underway)
            underway.set_result(None)

    # -------------------------------------------------------------- interrupting

    def interrupt(self) -> None:
        """End the wait, or the app's call, unless it is over; in any thread or signal handler."""
        with suppress(RuntimeError):  # the loop is closed
            # Not at once: a task that cancels itself would be cancelled at its next await,
            # which may be outside of what is to be interrupted.
            self._task.get_loop().call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._interruptible and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    def _was_interrupted(self) -> bool:
        """End what may be interrupted; return whether it was, and by nobody else."""
        was, self._interrupted = self._interrupted and self._interruptible, False
        self._interruptible = False
        return was and self._task.uncancel() <= self._cancelling

    # ------------------------------------------------- receiving, and the client's leaving

    async def _receive_for_app(self) -> Message:
        """Return the next message, to the app; several of its tasks may ask at once."""
        while not self._kept:
            if self._disconnected is not None:
                return self._disconnected
            if self._pump is None:
                return await self._receive_directly()
            self._arrived.clear()
            await self._arrived.wait()
        message = self._kept.popleft()
        self._size -= len(message.get("body", b""))
        self._pump_if_watched()
        return message

    async def _receive_directly(self) -> Message:
        # Two calls of a server's receive() at a time would get in each other's way, so while the
        # app waits there nobody else does: it is the first to learn of a disconnect.
        self._app_receives += 1
        try:
            message: Message = await self._receive()
        finally:
            self._app_receives -= 1
            self._pump_if_watched()
        self._note(message)
        return message

    def _begin_to_watch(self) -> None:
        self._watched = True
        if self._disconnected is not None:
            self._client_left()
        self._pump_if_watched()

    def _stop_watching(self) -> None:
        """What has been received is still there for the app.

        A call of the server's receive() that is under way is left alone: what it returns may be
        part of a body, and is kept.
        """
        if self._watch is not None:
            self._watch.cancel()
        self._watched = False

    @property
    def _may_pump(self) -> bool:
        return self._watched and self._disconnected is None and self._size < _MOST_BYTES

    def _pump_if_watched(self) -> None:
        if self._may_pump and self._pump is None and not self._app_receives:
            self._pump = asyncio.get_running_loop().create_task(self._keep_messages())

    async def _keep_messages(self) -> None:
        try:
            while self._may_pump:
                message: Message = await self._receive()
                self._note(message)
                if self._disconnected is None:
                    self._kept.append(message)
                    self._size += len(message.get("body", b""))
                self._arrived.set()
        except Exception:  # the server's own error: the app gets it when it asks
            self._watched = False
        finally:
            self._pump = None
            self._arrived.set()

    def _note(self, message: Message) -> None:
        if message["type"] in _DISCONNECTS and self._disconnected is None:
            self._disconnected = message
            if self._watched:
                self._client_left()

    def _client_left(self) -> None:
        if self._may_leave:
            self.interrupt()
