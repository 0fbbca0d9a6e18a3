"""limited_view: a limit for views of Flask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from weakref import WeakSet

from slotwise.integrations._admission import Admission, Refusal, RequestSlot
from slotwise.integrations._extras import needs_extra
from slotwise.integrations._source import KeyFunction, LimitArgument

with needs_extra("flask"):
    import flask

__all__ = ["limited_view"]


_HELD = "slotwise.held"  # in the environ: the slots of the request


def _release_after_error(_app: object, **_error: object) -> None:
    """Release the slot of a response that is never sent, such as when an after_request fails.

    Nobody closes it, and the traceback may keep it alive.
    """
    for held in list(flask.request.environ.get(_HELD, ())):
        held.close()


flask.got_request_exception.connect(_release_after_error)


def limited_view(
    limit: LimitArgument, *, key: KeyFunction | None = None, wait: float | None = 0.0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a view hold a slot until its response is closed; refuse requests that get none::

        @app.get("/reports/<tenant>")
        @limited_view(semaphore("reports", 5))
        def report(tenant): ...

    Args:
        limit: a Limit; or a function of the request that returns one, or None for unlimited; or
            Tiers, with ``key``.
        key: a function of the request that returns the keys for `Tiers.at`, as a dict; None for
            unlimited.
        wait: how long a request may wait for a slot, in seconds; None forever.
    """
    admission = Admission(limit, key, wait)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def hold(*args: Any, **kwargs: Any) -> Any:
            run = flask.current_app.ensure_sync(view)  # for a view that is a coroutine function
            return admission.hold(flask.request, partial(run, *args, **kwargs), _refuse, _attach)

        return hold

    return decorate


def _attach(response: Any, held: RequestSlot) -> Any:
    response = flask.make_response(response)
    response.call_on_close(held.close)
    flask.request.environ.setdefault(_HELD, WeakSet()).add(held)
    return response


def _refuse(refusal: Refusal) -> Any:
    return flask.Response(refusal.body, status=refusal.status, headers=refusal.all_fields)
