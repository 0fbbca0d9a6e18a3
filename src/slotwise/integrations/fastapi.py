"""limited_by: a limit as a dependency of FastAPI."""

# No `from __future__ import annotations`: FastAPI looks at the classes of parameters.
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from slotwise.integrations._admission import Admission, Refusal
from slotwise.integrations._extras import needs_extra
from slotwise.integrations._source import KeyFunction, LimitArgument

with needs_extra("fastapi"):
    from fastapi import BackgroundTasks, HTTPException
    from starlette.background import BackgroundTask
    from starlette.requests import HTTPConnection

__all__ = ["limited_by"]


class LimitDependency(Protocol):
    """What `limited_by` returns: a dependency, with what its routes may answer."""

    responses: dict[int | str, dict[str, Any]]

    __call__: Callable[..., AsyncIterator[None]]


_FIELDS = {
    "Retry-After": "In how many seconds to try again.",
    "RateLimit-Policy": "The limits that refused the request.",
    "RateLimit": "What is left of them.",
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "headers": {
            name: {"description": words, "schema": {"type": "string"}}
            for name, words in _FIELDS.items()
        },
    }
    for status, description in (
        (429, "Too many requests of this client"),
        (503, "No capacity for the moment"),
    )
}


def limited_by(
    limit: LimitArgument, key: KeyFunction | None = None, wait: float | None = 0.0
) -> LimitDependency:
    """Return a dependency that holds a slot until the response is complete::

        guard = limited_by(semaphore("reports", 5))

        @app.get("/report", dependencies=[Depends(guard)], responses=guard.responses)
        async def report(): ...

    A request that gets no slot is refused by an HTTPException with 429 or 503, and with the same
    fields as those of the middleware. Background tasks of a route hold no slot; those of a
    Response that the route makes itself do.

    Args:
        limit: a Limit; or a function of the request that returns one, or None for unlimited; or
            Tiers, with ``key``.
        key: a function of the request that returns the keys for `Tiers.at`, as a dict; None for
            unlimited.
        wait: how long a request may wait for a slot, in seconds; None forever.
    """
    admission = Admission(limit, key, wait)

    async def guard(request: HTTPConnection, tasks: BackgroundTasks) -> AsyncIterator[None]:
        entered = await admission.enter(request)
        if isinstance(entered, Refusal):
            raise HTTPException(entered.status, entered.detail, entered.fields)
        try:
            # The first of the tasks that run after the last chunk.
            tasks.tasks.insert(0, BackgroundTask(entered.close_async))
            yield
        finally:
            await entered.close_async()

    result: Any = guard
    result.responses = _RESPONSES
    typed: LimitDependency = result
    return typed
