"""Open a socket to a Redis server, and send it the first commands: greeting, user, queries.

Plain blocking code, with redis-py's options, run in a short-lived thread (`in_thread`), so that
every way it can fail is handled in one place. Afterwards a `Connection` takes the socket over.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import hiredis
from hiredis import pack_command

from slotwise._wait.threads import start_thread
from slotwise.errors import BackendError
from slotwise.redis import _diagnosis
from slotwise.redis._config import RedisConfig
from slotwise.redis._endpoint import CLIENT_NAME, Address, ConnectionOptions, Endpoint, show_address
from slotwise.redis._scripts import Script

T = TypeVar("T")

_OLDEST = (6, 2)

Credentials = tuple[str, str]

_REQUIREMENTS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
    None: ssl.CERT_NONE,
}


def in_thread(
    endpoint: Endpoint,
    loop: asyncio.AbstractEventLoop,
    name: str,
    work: Callable[[], T],
    then: Callable[[T | BackendError], object],
) -> None:
    """Do blocking work in a thread of its own; ``then`` gets its result, or error, in the loop."""

    def run() -> None:
        result: T | BackendError
        try:
            result = work()
        except BackendError as error:
            result = error
        except BaseException as error:  # a bug must not leave callers waiting
            result = _diagnosis.unusable(endpoint, error)
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(then, result)

    def fail(error: RuntimeError) -> None:
        loop.call_soon(then, _diagnosis.no_thread(endpoint, error))

    start_thread(name, run, on_failure=fail)


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


class Handshake:
    """A blocking conversation over a fresh socket.

    Its socket is closed with it, unless a `Connection` has taken it over: the event loop that
    was to do so may be closed in the meantime, and then drops its callbacks.

    If the greeting contains a password (``is_secret``), replies are not quoted in messages.
    """

    def __init__(
        self,
        sock: socket.socket,
        deadline: float,
        endpoint: Endpoint,
        address: Address,
        *,
        is_secret: bool,
    ) -> None:
        self.sock = sock
        self._taken = False
        self._is_secret = is_secret
        self.reader = hiredis.Reader()
        self._deadline = deadline
        self._endpoint = endpoint
        self.address = address
        self.missing_scripts: list[Script] = []  # scripts of ours that the server doesn't have
        self._received = b""  # the beginning of the last reply, for a message about it

    def take_socket(self) -> socket.socket:
        """Return the socket to the caller, who closes it from now on."""
        self._taken = True
        return self.sock

    def __del__(self) -> None:
        if not self._taken:
            self.sock.close()

    def allow(self, seconds: float) -> None:
        """Set the deadline for all replies together to ``seconds`` from now."""
        self._deadline = time.monotonic() + seconds

    def ask(self, *words: Any) -> Any:
        """Send one command and return its reply; errors are returned, not raised."""
        self.send([words])
        return self.reply()

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send commands in one write: their replies cost one round trip together."""
        self.sock.sendall(b"".join(pack_command(tuple(words)) for words in commands))

    def reply(self) -> Any:
        """Return the next reply, and skip messages before it.

        Nothing is lost: once the connection is in use, waiters ask what was granted meanwhile.
        """
        while (reply := self._parse()) is False or _is_message(reply):
            if reply is not False:
                continue
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._received = data[:100]
            self.reader.feed(data)
        if self._is_secret and isinstance(reply, hiredis.ReplyError):
            reply.may_repeat_password = True  # type: ignore[attr-defined]
        return reply

    def _parse(self) -> Any:
        try:
            return self.reader.gets()
        except hiredis.ProtocolError:
            raise self.misunderstood() from None

    def quoted(self, words: object) -> str:
        """Return what the server said, in a form that messages may quote."""
        return _diagnosis.said_by(self._endpoint, words)

    def misunderstood(self) -> BackendError:
        """Return the error for a reply, the last one, that Redis would never send."""
        answer = None if self._is_secret else self._received
        return _diagnosis.not_redis(self._endpoint, show_address(self.address), answer)


def _is_message(reply: Any) -> bool:
    return isinstance(reply, hiredis.PushNotification) and reply[0] == b"message"


def greet(
    config: RedisConfig,
    address: Address,
    questions: Sequence[Sequence[Any]] = (),
    *,
    is_sentinel: bool = False,
) -> Handshake:
    """Open a connection to ``address`` and greet; the caller reads the replies to ``questions``.

    These are sent together with the greeting, so that all of it takes one round trip.

    Raises:
        OSError: the server can't be reached or used (BackendError included).
        hiredis.ReplyError: it refused the user or the database.
    """
    endpoint = config.endpoint
    options = endpoint.sentinel_options if is_sentinel else endpoint.options
    credentials = get_credentials(endpoint, options)
    deadline = time.monotonic() + config.connect_timeout
    sock = open_socket(endpoint, options, address, config.connect_timeout)
    is_secret = credentials is not None
    handshake = Handshake(sock, deadline, endpoint, address, is_secret=is_secret)
    try:
        hello = ["HELLO", "3"]
        if credentials is not None:
            hello += ["AUTH", *credentials]
        hello += ["SETNAME", options.kwargs.get("client_name") or CLIENT_NAME]
        select = []
        if endpoint.database and not is_sentinel:
            select = [["SELECT", endpoint.database]]
        handshake.send([hello, *select, *questions])
        _check_version(handshake, endpoint)
        if select:
            selected = handshake.reply()
            if isinstance(selected, hiredis.ReplyError):
                raise selected
    except BaseException:
        sock.close()
        raise
    return handshake


def _check_version(handshake: Handshake, endpoint: Endpoint) -> None:
    """Read the reply to the greeting, and refuse servers that are too old."""
    reply = handshake.reply()
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    try:
        version = reply[b"version"].decode()
        number = tuple(int(part) for part in version.split(".")[:2])
    except (LookupError, TypeError, AttributeError, ValueError):
        raise handshake.misunderstood() from None
    if number < _OLDEST:
        raise _diagnosis.too_old(endpoint, version)
