"""Read the settings of a redis-py client: where its server is, and how it connects there.

The connections of the client are neither used nor changed.
"""

from __future__ import annotations

import inspect
from typing import Any

import redis.asyncio.connection as asyncio_connection
from redis import connection as sync_connection

from slotwise._core.redaction import kind_of
from slotwise.redis._endpoint import Address, ConnectionArguments, ConnectionOptions, Endpoint

# Settings that RedisConfig has itself (addresses, time limits, retries), and those about
# commands and replies, which redis-py does not handle for us.
_NOT_TAKEN = {
    *("host", "port", "path", "db", "ssl", "connection_class", "connection_pool"),
    *("socket_timeout", "socket_connect_timeout", "socket_read_size", "health_check_interval"),
    *("retry", "retry_on_timeout", "retry_on_error", "protocol", "legacy_responses"),
    *("encoding", "encoding_errors", "decode_responses", "parser_class", "encoder_class"),
    *("command_packer", "event_dispatcher", "himport_registry"),
    *("lib_name", "lib_version", "driver_info"),
    *("maint_notifications_config", "maint_notifications_pool_handler"),
    *("oss_cluster_maint_notifications_handler", "maintenance_state"),
    *("maintenance_notification_hash", "orig_host_address"),
    *("orig_socket_timeout", "orig_socket_connect_timeout"),
}
# For these, None is a value and not the absence of one.
_NONE_COUNTS = {"ssl_cert_reqs", "socket_keepalive_options"}
# What a class may override to open connections in its own way.
_OPENING = ("connect", "_connect", "on_connect", "on_connect_check_health")


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
    if settings["redis_connect_func"] is not None:
        settings["redis_connect_func"] = _after_on_connect(settings["redis_connect_func"])
    tls = bool(settings.get("ssl"))
    plain = sync_connection.SSLConnection if tls else sync_connection.Connection
    return Endpoint(
        addresses,
        _connection_options(settings, settings.get("connection_class") or plain),
        cluster=True,
        address_remap=getattr(manager, "address_remap", None),
    )


def _after_on_connect(function: Any) -> Any:
    def run(connection: Any) -> None:
        connection.on_connect()
        function(connection)

    return run


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
    """Return what of ``settings`` matters for opening a connection of the class ``used``."""
    base, is_own = _sync_class(used)
    taken = {
        name: value
        for name, value in settings.items()
        if name not in _NOT_TAKEN
        # Some defaults are a bare object(), which says "not given".
        and type(value) is not object
        and (value is not None or name in _NONE_COUNTS)
    }
    if is_own:
        tls = issubclass(base, sync_connection.SSLConnection)
        return ConnectionOptions(ConnectionArguments(taken), tls=tls, connection_class=base)
    if _is_asyncio(used) and "redis_connect_func" in taken:
        raise TypeError(
            "from_client can't take redis_connect_func= from an asyncio client;"
            " use credential_provider="
        )
    names = _parameters(base)
    if "ssl_check_hostname" in names:  # stated, as in a url: redis-py's default has changed
        default = inspect.signature(base).parameters["ssl_check_hostname"].default
        taken.setdefault("ssl_check_hostname", default)
    return ConnectionOptions(
        ConnectionArguments({name: value for name, value in taken.items() if name in names}),
        tls=base is sync_connection.SSLConnection,
    )


def _sync_class(used: type[Any]) -> tuple[type[Any], bool]:
    """Return the sync class that opens what ``used`` opens, and whether it's the user's own."""
    module = asyncio_connection if _is_asyncio(used) else sync_connection
    by_sentinel = hasattr(used, "connect_to")
    if module is sync_connection and not by_sentinel and not _is_of_redis(used):
        return used, True
    nearest = next(each for each in used.__mro__ if _is_of_redis(each))
    if any(getattr(used, name, None) is not getattr(nearest, name, None) for name in _OPENING):
        kind = "a Sentinel" if by_sentinel else "an asyncio"
        raise TypeError(
            f"from_client can't use {used.__name__}, {kind} connection class that opens its"
            f" connections in its own way; pass a plain sync client with a sync class"
        )
    for name in ("UnixDomainSocketConnection", "SSLConnection"):
        if issubclass(used, getattr(module, name)):
            return getattr(sync_connection, name), False
    return sync_connection.Connection, False


def _is_asyncio(used: type[Any]) -> bool:
    return issubclass(used, asyncio_connection.AbstractConnection)


def _is_of_redis(each: type[Any]) -> bool:
    return each.__module__.partition(".")[0] == "redis"


def _parameters(used: type[Any]) -> set[str]:
    """Return the keyword arguments that a class of redis-py and its bases take."""
    return {
        name
        for each in used.__mro__
        if each is not object and "__init__" in vars(each)
        for name in inspect.signature(vars(each)["__init__"]).parameters
    }
