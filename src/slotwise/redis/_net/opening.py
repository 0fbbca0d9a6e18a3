"""Open a socket to a Redis server with redis-py's connection classes.

TCP, unix sockets, TLS and its options, keepalive and classes of the user's own are redis-py's;
its credential provider is called here. The greeting is ours: redis-py sends its commands one by
one, at one round trip each, and `handshake` sends them all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import ssl
from typing import Any

from redis.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import AuthenticationError, ResponseError

from slotwise.errors import BackendError
from slotwise.redis import _diagnosis
from slotwise.redis._endpoint import Address, ConnectionOptions, Endpoint

Credentials = tuple[str, str]

# A connection class that overrides one of these greets and authenticates in its own way.
_GREETING = ("on_connect", "on_connect_check_health")

# Where redis-py would tell the server its version, it looks that up in its package's metadata for
# each connection: a millisecond, for a greeting that is not sent.
_SAYS_VERSION = "driver_info" in inspect.signature(AbstractConnection.__init__).parameters


def get_credentials(endpoint: Endpoint, options: ConnectionOptions) -> Credentials | None:
    """Return the user and password for the next connection; None if it needs none.

    A credential provider is asked each time, so that tokens may expire.

    Raises:
        BackendError: the credential provider failed.
    """
    kwargs = options.kwargs
    provider = kwargs.get("credential_provider")
    if _greets_itself(options):
        return None
    if provider is None:
        user, password = _text(kwargs.get("username")), _text(kwargs.get("password"))
        return (user or "default", password) if user or password else None
    try:
        given = [_text(each) for each in _ask(provider)]
        user, password = given if len(given) == 2 else ("", given[0])
    except Exception as error:
        # The provider's own message may contain a token; the traceback still has it.
        raise _diagnosis.Unreachable(
            f"the credential_provider of {endpoint} failed with {type(error).__name__}"
        ) from error
    if password not in options.issued:
        options.issued.append(password)
    return user or "default", password


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _ask(provider: Any) -> tuple[Any, ...]:
    try:
        return tuple(provider.get_credentials())
    except NotImplementedError:  # it is for asyncio only; no loop runs in this thread
        return tuple(asyncio.run(provider.get_credentials_async()))


def open_socket(
    endpoint: Endpoint, options: ConnectionOptions, address: Address, timeout: float
) -> socket.socket:
    """Return a connected socket, over TLS if the options say so.

    Raises:
        OSError: the operating system's own error.
        BackendError: redis-py failed for another reason.
    """
    host, port = address
    kwargs = {**options.kwargs, "socket_timeout": timeout, "socket_connect_timeout": timeout}
    kwargs |= {"path": host} if port == 0 else {"host": host, "port": port}
    if port and options.connection_class is None:
        kwargs.setdefault("socket_keepalive", True)  # not the default before redis-py 7
    if _greets_itself(options):
        kwargs["protocol"] = 3
    else:
        kwargs["redis_connect_func"] = _greet_later
        if _SAYS_VERSION and options.connection_class is None:
            kwargs["driver_info"] = None
    connection: Any = None
    try:
        connection = _class_for(options, address)(**kwargs)
        connection.connect()
    except Exception as error:  # may come from the user's own code
        with contextlib.suppress(Exception):
            connection.disconnect()
        close_abandoned(error)
        raise _as_os_error(endpoint, options, error) from error
    # redis-py has no public way to take the socket over. Removed from the connection object, the
    # socket isn't closed when that is garbage-collected.
    sock = getattr(connection, "_sock", None)
    if not isinstance(sock, socket.socket):
        raise _diagnosis.Unusable(
            f"{endpoint} can't be used: {type(connection).__name__} opens no socket"
        )
    connection._sock = None
    return sock


def close_abandoned(error: BaseException) -> None:
    """Close the socket that `ssl` leaves open if the other side resets it before the handshake.

    By then it has taken the socket over from its caller, and only its own frames know it.
    """
    seen: BaseException | None = error
    while seen is not None:
        trace = seen.__traceback__
        while trace is not None:
            left = trace.tb_frame.f_locals.get("self")
            if isinstance(left, ssl.SSLSocket):
                left.close()
            trace = trace.tb_next
        seen = seen.__cause__ or seen.__context__


def _class_for(options: ConnectionOptions, address: Address) -> type[Any]:
    if options.connection_class is not None:
        return options.connection_class
    if address[1] == 0:
        return UnixDomainSocketConnection
    return SSLConnection if options.tls else Connection


def _greets_itself(options: ConnectionOptions) -> bool:
    """Whether the user's own code greets the server, and so authenticates."""
    used = options.connection_class
    return options.kwargs.get("redis_connect_func") is not None or (
        used is not None
        and any(
            getattr(used, name, None) is not getattr(AbstractConnection, name, None)
            for name in _GREETING
        )
    )


def _greet_later(_: object) -> None:
    """Do nothing: redis-py calls this instead of its own greeting once the socket is open."""


def _as_os_error(
    endpoint: Endpoint, options: ConnectionOptions, error: BaseException
) -> OSError | BackendError:
    """Return the operating system's error inside redis-py's, which says more; or a diagnosis."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if options.tls and isinstance(cause, TimeoutError):
        return _diagnosis.Unreachable(
            f"{endpoint} does not answer, or does not speak TLS; is it running, or is it"
            f" redis:// instead of rediss://?"
        )
    if options.tls and isinstance(cause, FileNotFoundError):
        return _diagnosis.Unusable(
            f"{endpoint} can't be used: a file that ssl_ca_certs=, ssl_certfile= or ssl_keyfile="
            f" names does not exist"
        )
    if isinstance(cause, OSError):
        return cause
    if isinstance(error, ResponseError | AuthenticationError):  # from a greeting of the user's
        return _diagnosis.refused(endpoint, error, _diagnosis.Unusable)
    return _diagnosis.unusable(endpoint, error)
