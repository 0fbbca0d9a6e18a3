"""limited_view: a limit for views of Django, plain, async and streaming."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

from slotwise.integrations._admission import Admission, Refusal, RequestSlot
from slotwise.integrations._extras import needs_extra
from slotwise.integrations._source import KeyFunction, LimitArgument

with needs_extra("django"):
    from django.core.signals import got_request_exception
    from django.http import HttpResponse

__all__ = ["limited_view"]

_HELD = "_slotwise_held"  # of a request: its slots


def _release_after_error(request: Any = None, **_more: object) -> None:
    """Release the slot of a response that is never sent, such as when a middleware fails.

    Nobody closes it, and the traceback may keep it alive.
    """
    for held in list(getattr(request, _HELD, ())):
        held.close()


got_request_exception.connect(_release_after_error)


def limited_view(
    limit: LimitArgument, *, key: KeyFunction | None = None, wait: float | None = 0.0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a view hold a slot until its response is closed; refuse requests that get none::

        @limited_view(semaphore("reports", 5))
        def report(request, tenant): ...

    For class-based views: ``@method_decorator(limited_view(limit), name="dispatch")``.

    Args:
        limit: a Limit; or a function of the request that returns one, or None for unlimited; or
            Tiers, with ``key``.
        key: a function of the request that returns the keys for `Tiers.at`, as a dict; None for
            unlimited.
        wait: how long a request may wait for a slot, in seconds; None forever. The ``dispatch``
            of an async class-based view is a plain function, and can't wait.
    """
    admission = Admission(limit, key, wait)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(view):

            @wraps(view)
            async def hold_async(request: Any, *args: Any, **kwargs: Any) -> Any:
                entered = await admission.enter(request)
                if isinstance(entered, Refusal):
                    return _refuse(entered)
                return await _held_async(request, view(request, *args, **kwargs), entered)

            return hold_async

        @wraps(view)
        def hold(request: Any, *args: Any, **kwargs: Any) -> Any:
            respond = partial(view, request, *args, **kwargs)
            return admission.hold(request, respond, _refuse, partial(_attach, request))

        return hold

    return decorate


def _attach(request: Any, response: Any, held: RequestSlot) -> Any:
    held_by = _held_async if inspect.isawaitable(response) else _closing
    return held_by(request, response, held)


async def _held_async(request: Any, response: Awaitable[Any], held: RequestSlot) -> Any:
    try:
        return _closing(request, await response, held)
    except BaseException:
        await held.close_async()
        raise


def _closing(request: Any, response: Any, held: RequestSlot) -> Any:
    """Let the response release the slot when Django closes it, after its last chunk.

    A response that a middleware replaces is never closed: nothing here keeps it alive, so that its
    slot is released with it.
    """
    if not hasattr(request, _HELD):
        setattr(request, _HELD, weakref.WeakSet())
    getattr(request, _HELD).add(held)
    close_response = _weak(response.close)

    def close() -> None:
        try:
            close_response()()
        finally:
            held.close()

    response.close = close
    return response


def _weak(method: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that returns ``method``, and doesn't keep its object alive."""
    if inspect.ismethod(method):
        return weakref.WeakMethod(method)
    return lambda: method  # that of another limited_view, which doesn't either


def _refuse(refusal: Refusal) -> Any:
    return HttpResponse(refusal.body, status=refusal.status, headers=refusal.all_fields)
