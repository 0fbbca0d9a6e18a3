"""The page: all limits of a machine or a server in a browser, with their holders and waiters.

``slotwise web`` serves it; `app` returns the same page to mount in an ASGI application:

    app.mount("/slots", slotwise.web.app("redis://cache"))

It is HTML, an event stream and a few lines of JavaScript, all in this package. What is shown
is made by `slotwise._admin.snapshot`.
"""

from __future__ import annotations

from slotwise.web._app import App

__all__ = ["app"]


def app(url: str | None = None, *, token: str | None = None, allow_steer: bool = False) -> App:
    """Return an ASGI application that shows the limits of ``url``; it needs no lifespan.

    Anyone who can reach it can read it: without a ``token``, the application that mounts it has
    to authenticate its users and check the Host header.

    Args:
        url: ``process://`` or ``redis://...``; by default that of ``SLOTWISE_URL``, or else this
            machine's.
        token: what browsers and programs have to send: as ``Authorization: Bearer``, or once
            as ``?token=``.
        allow_steer: whether holders may be kicked and limits resized, closed and opened here.
    """
    return App(url, token=token, allow_steer=allow_steer)
