"""limit_middleware: a limit for what a client session of aiohttp has in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from slotwise.integrations._admission import RequestSlot
from slotwise.integrations._extras import needs_extra
from slotwise.integrations._learning import Learning
from slotwise.integrations._source import Cost, KeyFunction, LimitArgument, cost_finder

with needs_extra("aiohttp"):
    from aiohttp import ClientConnectionError, ClientRequest, ClientResponse
    from aiohttp import ClientHandlerType as _Handler  # noqa: F401 - there since 3.12

__all__ = ["limit_middleware"]

Handler = Callable[[Any], Awaitable[Any]]


def limit_middleware(
    limit: LimitArgument,
    *,
    key: KeyFunction | None = None,
    cost: Cost = None,
    learn: bool = False,
    max_pause: float = 300,
) -> Callable[[Any, Handler], Awaitable[Any]]:
    """Return a client middleware: every request, and every hop of a redirect, holds a slot::

        session = aiohttp.ClientSession(middlewares=[limit_middleware(semaphore("crm", 10))])

    It is held until the response is read to its end or closed; that of a WebSocket until it is
    closed. The arguments are those of `slotwise.integrations.httpx.LimitedTransport`.
    """
    learning = Learning(learn, max_pause)
    find = cost_finder(limit, key, cost)
    releases: set[asyncio.Task[None]] = set()  # an event loop keeps no reference to its tasks

    async def hold(request: ClientRequest, handler: Handler) -> ClientResponse:
        found, slots = find(request)
        held = RequestSlot(found, None if found is None else await found.acquire(slots))
        response: ClientResponse | None = None
        try:
            response = await handler(request)
            assert response is not None
            fields = response.headers.getall
            await learning.learn(held, response.status, lambda name: [*fields(name, ())])
        except BaseException as error:
            if response is None:
                alike = ConnectionError if isinstance(error, ClientConnectionError) else None
                held.leave_with(error, alike)
            else:  # it was cancelled
                response.close()
            await held.close_async()
            raise

        def release() -> None:
            if found is None or not found._does_io:
                held.close()
                return
            task = asyncio.get_running_loop().create_task(held.close_async())
            releases.add(task)
            task.add_done_callback(releases.discard)

        # The connection is given back after the last byte, which may have been read already.
        connection = response.connection
        if connection is None:
            await held.close_async()
        else:
            connection.add_callback(release)
        return response

    return hold
