"""Open a socket to a Redis server, with redis-py's options: TCP, unix sockets, TLS, keepalive.

Plain blocking code, run in a short-lived thread. The greeting is in `handshake`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from slotwise.errors import BackendError
from slotwise.redis import _diagnosis
from slotwise.redis._endpoint import Address, ConnectionOptions, Endpoint

Credentials = tuple[str, str]

_REQUIREMENTS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
    None: ssl.CERT_NONE,
}


def get_credentials(endpoint: Endpoint, options: ConnectionOptions) -> Credentials | None:
    """Return the user and password for the next connection; None if it needs none.

    A credential provider is asked each time, so that tokens may expire.

    Raises:
        BackendError: the credential provider failed.
    """
    kwargs = options.kwargs
    provider = kwargs.get("credential_provider")
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
        BackendError: the options can't be used.
    """
    host, port = address
    if port == 0:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout)
    else:
        sock = socket.create_connection(address, timeout)
    try:
        if port == 0:
            sock.connect(host)
        else:
            _prepare(sock, options.kwargs)
        return _wrap(sock, host, options.kwargs) if options.tls else sock
    except BaseException as error:
        sock.close()
        if options.tls and isinstance(error, TimeoutError):
            raise _diagnosis.Unreachable(
                f"{endpoint} does not answer, or does not speak TLS; is it running, or is it"
                f" redis:// instead of rediss://?"
            ) from error
        if options.tls and isinstance(error, FileNotFoundError):
            raise _diagnosis.Unusable(
                f"{endpoint} can't be used: a file that ssl_ca_certs=, ssl_certfile= or"
                f" ssl_keyfile= names does not exist"
            ) from error
        if isinstance(error, OSError | BackendError) or not isinstance(error, Exception):
            raise
        raise _diagnosis.unusable(endpoint, error) from error


def _prepare(sock: socket.socket, options: dict[str, Any]) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.get("socket_keepalive", True):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (options.get("socket_keepalive_options") or {}).items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _wrap(sock: socket.socket, host: str, options: dict[str, Any]) -> socket.socket:
    """Return the socket with TLS, as redis-py's options say."""
    context = ssl.create_default_context()
    requirement = options.get("ssl_cert_reqs", "required")
    requirement = _REQUIREMENTS.get(requirement, requirement)
    # Off first: without it, certificates can't be left unchecked.
    context.check_hostname = False
    context.verify_mode = requirement
    if requirement != ssl.CERT_NONE:
        context.check_hostname = options.get("ssl_check_hostname", True)
    for flag in options.get("ssl_include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in options.get("ssl_exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if certificate or key:
        context.load_cert_chain(certificate or "", key, options.get("ssl_password"))
    trusted = [options.get(f"ssl_ca_{what}") for what in ("certs", "path", "data")]
    if any(each is not None for each in trusted):
        context.load_verify_locations(*trusted)
    if options.get("ssl_min_version") is not None:
        context.minimum_version = options["ssl_min_version"]
    if options.get("ssl_ciphers"):
        context.set_ciphers(options["ssl_ciphers"])
    return context.wrap_socket(sock, server_hostname=host)
