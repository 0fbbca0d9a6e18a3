"""Endpoint: which server a url or a redis-py client names, and how to authenticate there.

An endpoint is a plain value. Nothing here connects: `_net.handshake` does. Reading a redis-py
client is done in `_from_client`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from slotwise._core.redaction import kind_of, scheme_of_unreadable

# (host, port), or (path, 0) for a unix socket.
Address = tuple[str, int]

_SCHEMES = "redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://"
# What follows the scheme, by its last part; for a single server `_PLAIN_FORM`.
_PLAIN_FORM = "user:password@host:port/database"
_FORMS = {
    "unix": "/path?db=0",
    "cluster": "user:password@host:port,host:port",
    "sentinel": "user:password@host:port,host:port/service/database",
}
# Options of TLS, under redis-py's names, that a url may have after its '?'.
_TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)
# What else a url may have there: ours, and what redis-py takes for its pools, timeouts and
# decoding, which means nothing here. A url that redis-py reads is read here too.
_OWN_OPTIONS = ("client_name", "db", "namespace", "password", "username")
_IGNORED_OPTIONS = (
    *("charset", "decode_responses", "encoding", "encoding_errors", "errors"),
    *("health_check_interval", "lib_name", "lib_version", "max_connections"),
    *("protocol", "retry_on_error", "retry_on_timeout", "single_connection_client"),
    *("socket_connect_timeout", "socket_keepalive", "socket_read_size", "socket_timeout"),
    *("socket_type", "timeout"),
)
_FALSE = ("0", "f", "false", "n", "no")
CLIENT_NAME = "slotwise"  # of our connections, unless another one is given
# Options that are always set. Configurations that spell them out share their
# connections with those that don't.
_DEFAULTS = {
    "client_name": CLIENT_NAME,
    "socket_keepalive": True,
    "ssl_cert_reqs": "required",
}
_ISSUED = 4  # passwords of a provider that are remembered, so that no message repeats them


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to open a connection, by redis-py's names, and to authenticate; without the address.

    Equal options are the same connection: those that only spell out a default are left out.
    """

    # Its values may be secret.
    kwargs: dict[str, Any] = field(default_factory=dict, repr=False)
    tls: bool = False
    # What a credential provider returned lately.
    issued: deque[str] = field(
        default_factory=lambda: deque(maxlen=_ISSUED), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        own = {
            name: value
            for name, value in self.kwargs.items()
            if name not in _DEFAULTS or value != _DEFAULTS[name]
        }
        object.__setattr__(self, "kwargs", own)

    def __hash__(self) -> int:  # values may be unhashable: a list of flags
        return hash((frozenset(self.kwargs), self.tls))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may repeat."""
        given = (self.kwargs.get("password"), self.kwargs.get("ssl_password"))
        texts = [each.decode() if isinstance(each, bytes) else each for each in given]
        return tuple(str(secret) for secret in (*texts, *self.issued) if secret)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: its addresses, how to connect to them, the database, and what kind it is.

    The addresses of a cluster are where to ask for the others; those of sentinels, where
    to ask for the primary of ``service``.
    """

    addresses: tuple[Address, ...]
    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    database: int = 0
    cluster: bool = False
    service: str | None = None
    sentinel_options: ConnectionOptions = field(default_factory=ConnectionOptions)
    # What RedisCluster(address_remap=) is: translates the addresses that the nodes announce.
    address_remap: Callable[[Address], Address] | None = None

    def __str__(self) -> str:
        """How messages name the server: without its password."""
        where = ",".join(show_address(address) for address in self.addresses)
        if self.cluster:
            return f"the Redis Cluster at {where}"
        if self.service is not None:
            return f"{self.service!r} of the Redis Sentinels at {where}"
        return f"Redis at {where}" + (f" (database {self.database})" if self.database else "")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may repeat."""
        return self.options.secrets + self.sentinel_options.secrets

    def server(self, node: Address | None = None) -> str:
        """How messages name the server itself, whatever the database; or one node of a cluster."""
        if node is not None:
            return f"Redis at {show_address(node)}"
        return str(replace(self, database=0)) if self.database else str(self)

    def remap(self, address: Address) -> Address:
        """Return where a node that announces ``address`` can be reached."""
        return address if self.address_remap is None else self.address_remap(address)

    def with_credential_provider(self, provider: object) -> Endpoint:
        """Return a copy that authenticates with what ``provider`` returns.

        Raises:
            ValueError: the endpoint already has a user or password.
        """
        kwargs = self.options.kwargs
        if kwargs.get("credential_provider") is provider:
            return self
        if kwargs.get("username") or kwargs.get("password"):
            raise ValueError(
                "url must not have a user or password when credential_provider= is given"
            )
        if not hasattr(provider, "get_credentials"):
            raise TypeError(
                f"credential_provider must be a redis.CredentialProvider, not {kind_of(provider)}"
            )
        options = {**kwargs, "credential_provider": provider}
        return replace(self, options=replace(self.options, kwargs=options))


def show_address(address: Address) -> str:
    host, port = address
    if port == 0:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_url(url: object) -> Endpoint:
    """Return what a url says; ValueError in a sentence that doesn't show the password."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {kind_of(url)}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in (
        *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
        *("redis+sentinel", "rediss+sentinel"),
    ):
        raise ValueError(f"url must begin with {_SCHEMES}, not {scheme_of_unreadable(url)}")
    # What was not understood may be part of a password: no message repeats it.
    form = (
        f"its form is {scheme}://{_FORMS.get(scheme.rpartition('+')[2], _PLAIN_FORM)},"
        f" with / ? # @ [ ] in a password percent-encoded"
    )
    try:
        # urlsplit knows one host; several are taken apart here.
        parts = urlsplit(f"http://{rest}") if scheme != "unix" else urlsplit(url)
    except ValueError:
        raise ValueError(f"url can't be read: a bracket is out of place; {form}") from None
    if scheme != "unix" and (
        "@" in parts.path + parts.fragment or ("@" in parts.query and "@" not in parts.netloc)
    ):
        # The rest of a password, whose beginning would be taken for a host.
        raise ValueError(f"url can't be read: there is a / ? or # before the @; {form}")
    user, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    query = _parse_query(parts.query, tls=scheme.startswith("rediss"))
    path = [unquote(part) for part in parts.path.split("/") if part]
    cluster, sentinel = scheme.endswith("+cluster"), scheme.endswith("+sentinel")
    service = None
    try:
        if scheme == "unix":
            addresses: tuple[Address, ...] = ((unquote(parts.path), 0),)
            path = []
        else:
            port = 26379 if sentinel else 6379
            addresses = tuple(_parse_host(host, port) for host in hosts.split(","))
        if sentinel:
            if not path:
                raise ValueError("a redis+sentinel:// url must name the service: .../mymaster")
            service = path.pop(0)
        number = query.get("db") or (path[0] if path else "0")
        if not (number.isascii() and number.isdigit()):
            raise ValueError("the database is not a number")
        database = int(number)
        tls = _parse_tls(query) if scheme.startswith("rediss") else None
    except ValueError as error:
        raise ValueError(f"url can't be read: {error}; {form}") from None
    if cluster and database:
        raise ValueError(f"url must not name database {database}: Redis Cluster has only 0")
    given = {
        "username": unquote(username) or query.get("username"),
        "password": unquote(password) or query.get("password"),
        "client_name": query.get("client_name"),
    }
    own = {name: value for name, value in given.items() if value}
    return Endpoint(
        addresses=addresses,
        options=ConnectionOptions({**own, **(tls or {})}, tls=tls is not None),
        database=database,
        cluster=cluster,
        service=service,
        sentinel_options=ConnectionOptions(tls or {}, tls=tls is not None)
        if sentinel
        else ConnectionOptions(),
    )


def namespace_in(url: str) -> str | None:
    """Return the ``?namespace=`` of a url, if it has one."""
    return dict(parse_qsl(url.partition("?")[2])).get("namespace")


def _parse_query(text: str, *, tls: bool) -> dict[str, str]:
    """Return the options after the '?'.

    Raises:
        ValueError: one is not known, or has no effect. What could be a part of a password is
            not quoted.
    """
    query = dict(parse_qsl(text, keep_blank_values=True))
    known = {*_OWN_OPTIONS, *_IGNORED_OPTIONS, *_TLS_OPTIONS}
    for name in query:
        if name in _TLS_OPTIONS and not tls:
            raise ValueError(f"url has {name}, which needs a scheme with TLS: rediss://")
        if name in known:
            continue
        if "@" in text or not (name.isidentifier() and name.isascii() and len(name) <= 40):
            raise ValueError("url has an unknown option after its '?'")
        from difflib import get_close_matches  # rarely needed, and slow to import

        similar = get_close_matches(name, known, 1)
        hint = f"did you mean {similar[0]}?" if similar else f"there are {', '.join(_OWN_OPTIONS)}"
        raise ValueError(f"url has the unknown option {name}; {hint}")
    return {name: value for name, value in query.items() if value}


def _parse_host(text: str, port: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        given = parts.port
    except ValueError:
        raise ValueError("the port is not a number up to 65535") from None
    if parts.hostname is None and text:
        raise ValueError("there is no host before the port")
    return parts.hostname or "localhost", given or port


def _parse_tls(query: dict[str, str]) -> dict[str, Any]:
    """Return redis-py's options of TLS; the host name is checked unless the url says no."""
    options: dict[str, Any] = {name: query[name] for name in _TLS_OPTIONS if name in query}
    requirement = options.get("ssl_cert_reqs", "required")
    if requirement not in ("none", "optional", "required"):
        raise ValueError("ssl_cert_reqs is not one of none, optional and required")
    # Said explicitly, as redis-py before 6.0 does not check it by default.
    wanted = query.get("ssl_check_hostname", "true").lower() not in _FALSE
    options["ssl_check_hostname"] = wanted and requirement != "none"
    if "ssl_min_version" in options:
        if not options["ssl_min_version"].isdecimal():
            raise ValueError("ssl_min_version is not a number, such as 771 for TLS 1.2")
        options["ssl_min_version"] = int(options["ssl_min_version"])
    return options
