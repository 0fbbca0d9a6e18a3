"""LimitedTransport: a limit for what clients of httpx, or httpx2, have in flight."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any

from slotwise.integrations._admission import RequestSlot
from slotwise.integrations._extras import needs_extra
from slotwise.integrations._learning import Learning
from slotwise.integrations._source import Cost, KeyFunction, LimitArgument, cost_finder

with needs_extra("httpx"):
    try:
        import httpx as _httpx
    except ImportError as missing:
        try:
            import httpx2 as _httpx  # noqa: F401 - which of them it is, the user's transport decides
        except ImportError:
            raise missing from None  # the one that the extra installs

__all__ = ["LimitedTransport"]


class LimitedTransport:
    """Wraps a transport: every request, and every hop of a redirect, holds a slot.

    It is held until the response is read to its end or closed. For sync and async clients::

        limit = semaphore("crm", 10)
        client = httpx.AsyncClient(transport=LimitedTransport(httpx.AsyncHTTPTransport(), limit))

    Args:
        transport: the transport to wrap, of httpx or httpx2.
        limit: a Limit; or a function of the request that returns one, or None for unlimited; or
            Tiers, with ``key``.
        key: a function of the request that returns the keys for `Tiers.at`, as a dict; None for
            unlimited.
        cost: how many slots a request takes, or a function of the request that returns it; for
            Tiers, that may return a dict of rates to their costs.
        learn: slow down when the server says so. A 429 or 503 with ``Retry-After`` pauses the
            limit, for all who share it. An adaptive limit is told ``dropped()`` instead.
        max_pause: the longest pause that a server may ask for, in seconds.
    """

    def __init__(
        self,
        transport: Any,
        limit: LimitArgument,
        *,
        key: KeyFunction | None = None,
        cost: Cost = None,
        learn: bool = False,
        max_pause: float = 300,
    ) -> None:
        self._learning = Learning(learn, max_pause)
        self._transport = transport
        self._find = cost_finder(limit, key, cost)

    def handle_request(self, request: Any) -> Any:
        limit, slots = self._find(request)
        held = RequestSlot(limit, None if limit is None else limit.acquire_sync(slots))
        response = None
        try:
            response = self._transport.handle_request(request)
            response.stream = _stream_classes(_package_of(response))[0](response.stream, held)
            self._learning.learn_sync(held, response.status_code, response.headers.get_list)
        except BaseException as error:
            if response is None:
                held.leave_with(error, _alike(error))
            else:  # it was interrupted
                response.close()
            held.close()
            raise
        if response.is_closed:  # it was made of its whole content, so nobody closes its stream
            held.close()
        return response

    async def handle_async_request(self, request: Any) -> Any:
        limit, slots = self._find(request)
        held = RequestSlot(limit, None if limit is None else await limit.acquire(slots))
        response = None
        try:
            response = await self._transport.handle_async_request(request)
            response.stream = _stream_classes(_package_of(response))[1](response.stream, held)
            await self._learning.learn(held, response.status_code, response.headers.get_list)
        except BaseException as error:
            if response is None:
                held.leave_with(error, _alike(error))
            else:  # it was cancelled
                await response.aclose()
            await held.close_async()
            raise
        if response.is_closed:
            await held.close_async()
        return response

    def close(self) -> None:
        self._transport.close()

    async def aclose(self) -> None:
        await self._transport.aclose()

    def __enter__(self) -> LimitedTransport:
        self._transport.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._transport.__exit__(*exc_info)

    async def __aenter__(self) -> LimitedTransport:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._transport.__aexit__(*exc_info)


def _package_of(response: object) -> str:
    """Return ``httpx`` or ``httpx2``, or where else it comes from."""
    return type(response).__module__.partition(".")[0]


def _alike(error: BaseException) -> type[BaseException] | None:
    """Return the built-in error that one of httpx is like, if there is one."""
    framework: Any = sys.modules[_package_of(error)]
    if isinstance(error, getattr(framework, "TimeoutException", ())):
        return TimeoutError
    return ConnectionError if isinstance(error, getattr(framework, "NetworkError", ())) else None


@lru_cache
def _stream_classes(package: str) -> tuple[type[Any], type[Any]]:
    """Return the classes of streams that release a slot; a client accepts only its own kind."""
    framework: Any = sys.modules[package]

    class HeldStream(framework.SyncByteStream):
        def __init__(self, stream: Any, held: RequestSlot) -> None:
            self._stream = stream
            self._held = held

        def __iter__(self) -> Iterator[bytes]:
            yield from self._stream

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._held.close()

    class AsyncHeldStream(framework.AsyncByteStream):
        def __init__(self, stream: Any, held: RequestSlot) -> None:
            self._stream = stream
            self._held = held

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._stream:
                yield chunk

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                await self._held.close_async()

    return HeldStream, AsyncHeldStream
