"""Read the settings of a redis-py client: where its server is, and how it connects there.

The connections of the client are neither used nor changed.
"""

from __future__ import annotations

from typing import Any

from redis.connection import Connection, SSLConnection

from slotwise._core.redaction import kind_of
from slotwise.redis._endpoint import Address, ConnectionOptions, Endpoint

# What is taken of the settings, under redis-py's names: who to be, keepalive, TLS. The others are
# RedisConfig's own (addresses, time limits, retries), or about commands and replies.
_TAKEN = (
    *("username", "password", "credential_provider", "client_name"),
    *("socket_keepalive", "socket_keepalive_options"),
    *("ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile"),
    *("ssl_check_hostname", "ssl_ciphers", "ssl_exclude_verify_flags", "ssl_include_verify_flags"),
    *("ssl_keyfile", "ssl_min_version", "ssl_password"),
)
_NONE_COUNTS = ("ssl_cert_reqs",)  # where None is a value, and not the absence of one
# What would have to open, check or greet in its own way.
_REFUSED = ("redis_connect_func", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled")


def endpoint_of(client: Any) -> Endpoint:
    """Return the server of a client or connection pool, sync or asyncio.

    Raises:
        TypeError: it is neither, or its connections can't be opened by us.
    """
    if hasattr(client, "nodes_manager"):
        return _cluster(client)
    pool = getattr(client, "connection_pool", client)
    settings = getattr(pool, "connection_kwargs", None)
    if not isinstance(settings, dict) or not hasattr(pool, "connection_class"):
        raise TypeError(
            f"from_client takes a client or connection pool of redis-py (for Sentinel: what"
            f" master_for returns), not {kind_of(client)}"
        )
    options = _connection_options(settings, pool.connection_class)
    if hasattr(pool, "sentinel_manager"):
        return _sentinel(pool, settings, options)
    return Endpoint((_address(settings),), options, database=int(settings.get("db") or 0))


def _cluster(client: Any) -> Endpoint:
    manager = client.nodes_manager
    nodes = [*manager.startup_nodes.values(), *manager.nodes_cache.values()]
    addresses = tuple(dict.fromkeys((str(node.host), int(node.port)) for node in nodes))
    settings = getattr(manager, "connection_kwargs", None)
    if settings is None:  # asyncio
        settings = client.connection_kwargs
    # The client's own function sets up redis-py's parser, and then calls the user's.
    settings = {**settings, "redis_connect_func": getattr(client, "user_on_connect_func", None)}
    tls = bool(settings.get("ssl"))
    plain = SSLConnection if tls else Connection
    return Endpoint(
        addresses,
        _connection_options(settings, settings.get("connection_class") or plain),
        cluster=True,
        address_remap=getattr(manager, "address_remap", None),
    )


def _sentinel(pool: Any, settings: dict[str, Any], options: ConnectionOptions) -> Endpoint:
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    own = ConnectionOptions()
    if pools:
        own = _connection_options(pools[0].connection_kwargs, pools[0].connection_class)
    return Endpoint(
        tuple(_address(each.connection_kwargs) for each in pools),
        options,
        database=int(settings.get("db") or 0),
        service=str(pool.service_name),
        sentinel_options=own,
    )


def _address(settings: dict[str, Any]) -> Address:
    if settings.get("path"):
        return str(settings["path"]), 0
    return str(settings.get("host", "localhost")), int(settings.get("port", 6379))


def _connection_options(settings: dict[str, Any], used: type[Any]) -> ConnectionOptions:
    """Return what of ``settings`` matters for opening a connection like the class ``used``.

    Raises:
        TypeError: code of the user's own would have to open it.
    """
    wanted = next((name for name in _REFUSED if settings.get(name)), None)
    if used.__module__.partition(".")[0] != "redis":
        wanted = used.__name__
    if wanted is not None:
        raise TypeError(
            f"from_client can't use {wanted}: slotwise opens and greets its connections itself;"
            f" use credential_provider= for tokens"
        )
    tls = any(each.__name__ == "SSLConnection" for each in used.__mro__)
    taken = {
        name: settings[name]
        for name in _TAKEN
        if name in settings
        and (tls or not name.startswith("ssl_"))
        # Some defaults are a bare object(), which says "not given".
        and type(settings[name]) is not object
        and (settings[name] is not None or name in _NONE_COUNTS)
    }
    if tls:
        taken.setdefault("ssl_check_hostname", True)  # stated, as in a url
    return ConnectionOptions(taken, tls=tls)
