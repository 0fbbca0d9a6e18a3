"""RedisConfig: where the server is, and how patient to be with it.

A configuration is a plain value: equal ones share their connections, and none
holds a connection itself. `RedisConfig.from_client` reads the settings of a
redis-py client, and leaves its connections alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from slotwise._core.arguments import check_count, check_seconds, check_text
from slotwise._core.redaction import kind_of, scheme_of_unreadable

# Options of TLS, by redis-py's names, that may stand behind the '?' of a url.
_TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
    "ssl_password",
)
_SCHEMES = "redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server as a url names it: addresses, user, database, TLS, and what kind it is.

    An address is (host, port), or (path, 0) for a unix socket. Those of a
    cluster are where to ask for the others, those of sentinels where to ask
    for the primary of ``service``.
    """

    addresses: tuple[tuple[str, int], ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: tuple[tuple[str, Any], ...] | None = field(default=None, repr=False)
    cluster: bool = False
    service: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

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
        options = dict(self.tls or ())
        found = (self.password, self.sentinel_password, options.get("ssl_password"))
        return tuple(str(secret) for secret in found if secret)

    def server(self, node: tuple[str, int] | None = None) -> str:
        """How messages name the server itself, whatever the database; or one node of a cluster."""
        if node is not None:
            return f"Redis at {show_address(node)}"
        return str(replace(self, database=0)) if self.database else str(self)


def show_address(address: tuple[str, int]) -> str:
    host, port = address
    if port == 0:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """The server behind a RedisSemaphore, and how patient to be with it.

    Args:
        url: ``redis://user:password@host:port/database``, ``rediss://`` for TLS,
            ``unix://path``, ``redis+cluster://host:port,host:port``, or
            ``redis+sentinel://host:port,host:port/service/database``.
        namespace: what all keys begin with.
        connect_timeout: the longest that opening a connection may take, in seconds.
        reply_timeout: the longest that a reply may take; then the connection is made anew.
        attempts: how often in a row a call tries to reach the server before it fails.
            Those who already stand in line are more patient: they wait for the
            server to come back for as long as their own time-out allows.
        backoff: the pause after the first failed attempt; it doubles each time, with jitter.
        max_backoff: the longest pause between attempts.
        cleanup_timeout: the longest that ``release()``, and an acquire that was
            cancelled, wait for the server to confirm that they are done. What is not
            confirmed by then continues in the background.
    """

    url: str = field(default="redis://localhost:6379", repr=False)
    namespace: str = "adv-sem"
    connect_timeout: float = 5.0
    reply_timeout: float = 10.0
    attempts: int = 5
    backoff: float = 0.05
    max_backoff: float = 1.0
    cleanup_timeout: float = 2.0
    endpoint: Endpoint = field(default=None)  # type: ignore[assignment]  # made from the url

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, str):
            raise TypeError(f"namespace must be a str, not {kind_of(self.namespace)}")
        if not self.namespace:
            raise ValueError("namespace must not be empty")
        check_text("namespace", self.namespace)
        for what in ("connect_timeout", "reply_timeout", "backoff", "max_backoff"):
            _set(self, what, _some_seconds(what, getattr(self, what)))
        _set(self, "cleanup_timeout", _some_seconds("cleanup_timeout", self.cleanup_timeout))
        check_count("attempts", self.attempts)
        if self.endpoint is None:
            _set(self, "endpoint", parse_url(self.url))
        if self.endpoint.cluster:
            _check_hash_tag(self.namespace)

    @classmethod
    def from_client(cls, client: Any, **options: Any) -> RedisConfig:
        """The settings of a redis-py client, sync or async: plain, Cluster or Sentinel.

        For Sentinel, pass what ``Sentinel.master_for(service)`` returns. The
        connections of the client are not used. ``options`` are those of
        RedisConfig, besides the url.
        """
        endpoint = _endpoint_of(client)
        return cls(url=str(endpoint), endpoint=endpoint, **options)

    @property
    def connection(self) -> RedisConfig:
        """What configurations have in common that share their connections."""
        return replace(self, url="", namespace="*", cleanup_timeout=1.0)

    def with_options(self, **options: Any) -> RedisConfig:
        """A copy with other options."""
        return replace(self, **options)


def _check_hash_tag(namespace: str) -> None:
    """Refuse a brace that would take the keys of one name into different hash slots."""
    _, opened, rest = namespace.partition("{")
    tag, closed, _ = rest.partition("}")
    if opened and not (tag and closed):
        raise ValueError(
            f"a namespace on Redis Cluster must have no '{{', or a whole hash tag such as"
            f" '{{app}}', which {namespace!r} has not"
        )


def parse_url(url: object) -> Endpoint:
    """What a url says; ValueError in a sentence that does not show the password."""
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
        f"its form is {scheme}://user:password@host:port/database,"
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
        raise ValueError(f"url can't be read: a / ? or # stands before the @; {form}")
    user, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    query = dict(parse_qsl(parts.query))
    path = [unquote(part) for part in parts.path.split("/") if part]
    cluster, sentinel = scheme.endswith("+cluster"), scheme.endswith("+sentinel")
    try:
        if scheme == "unix":
            addresses: tuple[tuple[str, int], ...] = ((unquote(parts.path), 0),)
            path = []
        else:
            port = 26379 if sentinel else 6379
            addresses = tuple(_parse_host(host, port) for host in hosts.split(","))
        service = None
        if sentinel:
            if not path:
                raise ValueError("a redis+sentinel:// url must name the service: .../mymaster")
            service = path.pop(0)
        database = _parse_database(query.get("db") or (path[0] if path else "0"))
    except ValueError as error:
        raise ValueError(f"url can't be read: {error}; {form}") from None
    if cluster and database:
        raise ValueError(f"url must not name database {database}: Redis Cluster has only 0")
    tls = tuple((name, query[name]) for name in _TLS_OPTIONS if name in query)
    return Endpoint(
        addresses=addresses,
        username=unquote(username) or None,
        password=unquote(password) or None,
        database=database,
        tls=tls if scheme.startswith("rediss") else None,
        cluster=cluster,
        service=service,
    )


def _parse_host(text: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        given = parts.port
    except ValueError:
        raise ValueError("the port is none") from None
    if parts.hostname is None and text:
        raise ValueError("the host is none")
    return parts.hostname or "localhost", given or port


def _parse_database(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("the database is no number")
    return int(text)


def _endpoint_of(client: Any) -> Endpoint:
    if hasattr(client, "nodes_manager"):  # RedisCluster, sync or async
        manager = client.nodes_manager
        nodes = [*manager.startup_nodes.values(), *manager.nodes_cache.values()]
        addresses = tuple(dict.fromkeys((str(node.host), int(node.port)) for node in nodes))
        settings = getattr(manager, "connection_kwargs", None)
        if settings is None:
            settings = client.connection_kwargs
        return _from_settings(settings, addresses, cluster=True)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise TypeError(
            f"from_client takes a client of redis-py (for Sentinel: what master_for returns),"
            f" not {kind_of(client)}"
        )
    settings = pool.connection_kwargs
    if hasattr(pool, "sentinel_manager"):
        sentinels = pool.sentinel_manager.sentinels
        addresses = tuple(
            (str(each["host"]), int(each["port"]))
            for each in (sentinel.connection_pool.connection_kwargs for sentinel in sentinels)
        )
        own = sentinels[0].connection_pool.connection_kwargs if sentinels else {}
        return _from_settings(
            settings,
            addresses,
            service=str(pool.service_name),
            sentinel_username=own.get("username"),
            sentinel_password=own.get("password"),
        )
    if settings.get("path"):
        return _from_settings(settings, ((str(settings["path"]), 0),))
    address = (str(settings.get("host", "localhost")), int(settings.get("port", 6379)))
    tls = "SSL" in pool.connection_class.__name__
    return _from_settings(settings, (address,), tls=tls)


def _from_settings(
    settings: dict[str, Any],
    addresses: tuple[tuple[str, int], ...],
    *,
    tls: bool = False,
    **more: Any,
) -> Endpoint:
    if settings.get("credential_provider") is not None:
        username, *password = settings["credential_provider"].get_credentials()
        # A provider that gives one thing gives the password.
        settings = {**settings, "username": username if password else None}
        settings["password"] = password[0] if password else username
    tls = tls or bool(settings.get("ssl")) or any(name.startswith("ssl_") for name in settings)
    options = tuple((n, settings[n]) for n in _TLS_OPTIONS if settings.get(n) is not None)
    return Endpoint(
        addresses=addresses,
        username=settings.get("username") or None,
        password=settings.get("password") or None,
        database=int(settings.get("db") or 0),
        tls=options if tls else None,
        **more,
    )


def _some_seconds(what: str, given: object) -> float:
    seconds = check_seconds(what, given)
    if seconds is None:
        raise TypeError(f"{what} must be a number of seconds, not None")
    return seconds


def _set(config: RedisConfig, name: str, value: object) -> None:
    object.__setattr__(config, name, value)


_LONGEST_PING = 5.0


def check_heartbeat(longest_silence: object, ping_interval: object) -> tuple[float, float]:
    """How long a process may be silent, and how often it shows that it lives.

    That is at least every 5 s, because a heartbeat also renews the lives of the keys: a client of
    the documented protocol lets them expire its own ttl and 10 s after its last call.
    """
    interval = check_seconds("heartbeat_max_interval", longest_silence)
    if interval is None:
        raise TypeError("heartbeat_max_interval must be a number of seconds, not None")
    ping = check_seconds("ping_interval", ping_interval)
    if ping is None:
        return interval, min(interval / 5, _LONGEST_PING)
    if ping >= interval:
        raise ValueError(
            f"ping_interval must be lower than heartbeat_max_interval ({interval:g} s),"
            f" not {ping:g} s"
        )
    return interval, min(ping, _LONGEST_PING)
