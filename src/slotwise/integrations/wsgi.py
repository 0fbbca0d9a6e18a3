"""LimitMiddleware: a limit in front of any WSGI app."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

from slotwise.integrations._admission import EXEMPT, Admission, Refusal, RequestSlot, exempt_paths
from slotwise.integrations._source import KeyFunction, LimitArgument

__all__ = ["LimitMiddleware"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class LimitMiddleware:
    """Lets requests into a WSGI app while there are slots, and refuses the others.

    A request holds its slot until the server calls ``close()`` on its response, which it does
    after the last chunk, or when the client has left.

    Args:
        app: the WSGI app.
        limit: a Limit; or a function of the environ that returns one, or None for unlimited; or
            Tiers, with ``key``.
        key: a function of the environ that returns the keys for `Tiers.at`, as a dict; None for
            unlimited.
        wait: how long a request may wait for a slot, in seconds; None forever.
        exempt: paths that are never limited.
        observe: let requests without a slot in too, and count them in ``would_refuse``.
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
    ) -> None:
        self._app = app
        self._admission = Admission(limit, key, wait, observe=observe)
        self._exempt = exempt_paths(exempt)

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return self._admission.refused

    @property
    def would_refuse(self) -> int:
        """How many requests would have been refused, with ``observe``."""
        return self._admission.would_refuse

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        respond = partial(self._app, environ, start_response)
        if environ.get("PATH_INFO") in self._exempt:
            return respond()
        refuse = partial(_refuse, environ, start_response)
        response: Iterable[bytes] = self._admission.hold(environ, respond, refuse, _Response)
        return response


class _Response:
    """The app's response, with a slot until it is closed."""

    def __init__(self, chunks: Iterable[bytes], held: RequestSlot) -> None:
        self._chunks = chunks
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def close(self) -> None:
        try:
            close = getattr(self._chunks, "close", None)
            if close is not None:
                close()
        finally:
            self._held.close()


def _refuse(environ: Environ, start_response: StartResponse, refusal: Refusal) -> list[bytes]:
    start_response(
        f"{refusal.status} {HTTPStatus(refusal.status).phrase}", list(refusal.all_fields.items())
    )
    return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else refusal.body]
