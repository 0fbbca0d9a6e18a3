"""RedisConfig: where the server is, and how long to wait for it.

A configuration is a plain value: none holds a connection itself, and those with equal endpoints
share their connections. Urls are read in `_endpoint`, clients in `_from_client`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from slotwise._core.arguments import check_count, check_required_seconds, check_text
from slotwise._core.redaction import kind_of, redact, redacted_repr
from slotwise.redis._endpoint import Endpoint, namespace_in, parse_url

_NAMESPACE = "adv-sem"  # unless another one is given


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """The server behind a RedisSemaphore, and how long to wait for it.

    Configurations of one server, database, user and set of TLS options share one heartbeat
    thread and its connections, whatever their namespaces and limits. All calls and connections are
    as patient as the most patient of them.

    Args:
        url: ``redis://user:password@host:port/database``, ``rediss://`` for TLS,
            ``unix://path``, ``redis+cluster://host:port,host:port``, or
            ``redis+sentinel://host:port,host:port/service/database``.
        namespace: the prefix of all keys. A url may contain it as ``?namespace=...`` instead.
        connect_timeout: the longest time to open a connection, in seconds.
        reply_timeout: the longest time without any reply, after which the connection is
            reopened, and the attempt counts as failed.
        attempts: how often in a row a call tries to reach the server before it fails.
            Waiters that are already queued keep trying until their own timeout.
        backoff: the pause after the first failed attempt; it doubles each time, with jitter.
        max_backoff: the longest pause between attempts.
        cleanup_timeout: how long ``release()`` waits for the server to confirm. What isn't
            confirmed by then continues in the background.
        credential_provider: a ``redis.CredentialProvider``, asked for a user and password each
            time a connection is opened; the url then has neither.
    """

    url: str = field(default="redis://localhost:6379", repr=False)
    namespace: str = _NAMESPACE
    connect_timeout: float = 5.0
    reply_timeout: float = 10.0
    attempts: int = 5
    backoff: float = 0.05
    max_backoff: float = 0.5
    cleanup_timeout: float = 2.0
    # Not compared, as the endpoint has it too.
    credential_provider: Any = field(default=None, repr=False, compare=False)
    endpoint: Endpoint = field(default=None)  # type: ignore[assignment]  # made from the url

    def __repr__(self) -> str:
        shown = (each.name for each in fields(self) if each.repr)
        return redact(f"RedisConfig({', '.join(f'{o}={getattr(self, o)!r}' for o in shown)})")

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, str):
            raise TypeError(f"namespace must be a str, not {kind_of(self.namespace)}")
        if not self.namespace:
            raise ValueError("namespace must not be empty")
        _set(self, "namespace", check_text("namespace", self.namespace))
        for what in ("connect_timeout", "reply_timeout", "backoff", "max_backoff"):
            _set(self, what, check_required_seconds(what, getattr(self, what)))
        cleanup_timeout = check_required_seconds("cleanup_timeout", self.cleanup_timeout)
        _set(self, "cleanup_timeout", cleanup_timeout)
        check_count("attempts", self.attempts)
        if self.endpoint is None:
            _set(self, "endpoint", parse_url(self.url))
            if self.namespace == _NAMESPACE:
                _set(
                    self, "namespace", check_text("namespace", namespace_in(self.url) or _NAMESPACE)
                )
        if self.credential_provider is not None:
            endpoint = self.endpoint.with_credential_provider(self.credential_provider)
            _set(self, "endpoint", endpoint)
        if self.endpoint.cluster:
            _check_hash_tag(self.namespace)

    @classmethod
    def from_client(cls, client: Any, **options: Any) -> RedisConfig:
        """Return the settings of a redis-py client or connection pool, sync or asyncio.

        It may be a plain, a Cluster or a Sentinel client (what ``Sentinel.master_for(service)``
        returns). Its address, TLS, user and password or ``credential_provider``, database and
        client name are taken; its connections are not used. ``options`` are those of RedisConfig,
        except the url.

        Raises:
            TypeError: it is neither, or has a connection class or ``redis_connect_func`` of your
                own.
        """
        # Here, so that a url can be read without redis-py.
        from slotwise.redis._from_client import endpoint_of

        endpoint = endpoint_of(client)
        return cls(url=str(endpoint), endpoint=endpoint, **options)

    def with_options(self, **options: Any) -> RedisConfig:
        """Return a copy with other options."""
        if "url" in options:
            options.setdefault("endpoint", None)  # the new one comes from the new url
        return replace(self, **options)


class ServerSettings:
    """What the connections of this process to one server, and all calls on them, follow.

    They are as patient as the most patient configuration that this process has used for the
    server: an attempt to connect may take the longest ``connect_timeout``, and the pause before
    the next one is the shortest.
    """

    __slots__ = ("config",)

    def __init__(self, config: RedisConfig) -> None:
        self.config = config

    def include(self, config: RedisConfig) -> None:
        """Be patient enough for another configuration of the same server."""
        ours = self.config
        longest = ("connect_timeout", "reply_timeout", "attempts")
        patient = {name: max(getattr(ours, name), getattr(config, name)) for name in longest}
        for name in ("backoff", "max_backoff"):
            patient[name] = min(getattr(ours, name), getattr(config, name))
        if any(getattr(ours, name) != value for name, value in patient.items()):
            self.config = replace(ours, **patient)

    def pause(self, failures: int) -> float:
        """Return the longest pause after this many failed attempts in a row."""
        config = self.config
        return min(config.backoff * 2.0 ** min(failures - 1, 30), config.max_backoff)


def _check_hash_tag(namespace: str) -> None:
    """Refuse a brace that would put the keys of one name into different hash slots."""
    _, opened, rest = namespace.partition("{")
    tag, closed, _ = rest.partition("}")
    if opened and not (tag and closed):
        raise ValueError(
            f"a namespace on Redis Cluster must have no '{{', or a complete hash tag such as"
            f" '{{app}}'; {redacted_repr(namespace)} has an incomplete one"
        )


def _set(config: RedisConfig, name: str, value: object) -> None:
    object.__setattr__(config, name, value)
