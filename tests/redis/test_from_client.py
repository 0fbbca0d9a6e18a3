"""RedisConfig.from_client and credential_provider=: what redis-py can be told, we can be told."""

from __future__ import annotations

import asyncio
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster
import redis.connection
import redis.sentinel
from tests.redis._server import Server

import slotwise
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._shared_client import shared_client_for

KEY = "adv-sem:semaphore_state:s"


class Tokens(redis.CredentialProvider):
    """A user whose password is another one each time it is asked for, as in a cloud."""

    def __init__(self, server: Server, user: str = "cloud") -> None:
        self._server = server
        self._user = user
        self.given: list[str] = []

    def get_credentials(self) -> tuple[str, str]:
        token = f"T0ken-{len(self.given)}"
        with self._server.client() as admin:
            rights = ["~*", "&*", "+@all", "resetpass", f">{token}"]
            admin.execute_command("ACL", "SETUSER", self._user, "on", *rights)
        self.given.append(token)
        return self._user, token


class AsyncTokens(Tokens):
    """Can only be asked by a coroutine."""

    def get_credentials(self) -> tuple[str, str]:
        raise NotImplementedError

    async def get_credentials_async(self) -> tuple[str, str]:
        await asyncio.sleep(0)
        return super().get_credentials()


async def use(config: RedisConfig) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    assert await asyncio.wait_for(semaphore.release(await semaphore.acquire()), 30)


def users(server: Server) -> set[tuple[str, str]]:
    """Return the (user, client name) of every connection to the server."""
    with server.client() as client:
        return {(each["user"], each["name"]) for each in client.client_list()}


@pytest.fixture
def cloud(server: Server) -> Iterator[Server]:
    """The server, where users can be made that are gone afterwards."""
    yield server
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "cloud")


def plain(server: Server) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": server.port}


# ----------------------------------------------------------------------- settings


def test_settings_are_taken_from_clients_and_connections_are_not(server: Server) -> None:
    client = redis.Redis(**plain(server), db=3, username="u", password="pw", client_name="me")
    config = RedisConfig.from_client(client, namespace="mine")
    endpoint = config.endpoint
    assert endpoint.addresses == (("127.0.0.1", server.port),)
    assert (endpoint.database, config.namespace) == (3, "mine")
    kwargs = endpoint.options.kwargs
    assert (kwargs["username"], kwargs["password"], kwargs["client_name"]) == ("u", "pw", "me")
    assert "pw" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(RedisConfig.from_client(client, namespace="mine"))


def test_tls_and_unix_sockets_are_seen() -> None:
    for kind in (redis, redis.asyncio):
        assert RedisConfig.from_client(kind.Redis(unix_socket_path="/x")).endpoint.addresses == (
            ("/x", 0),
        )
        options = RedisConfig.from_client(kind.Redis(ssl=True, ssl_ca_certs="/ca")).endpoint.options
        assert options.tls
        assert options.kwargs["ssl_ca_certs"] == "/ca"
        unchecked = kind.Redis(ssl=True, ssl_cert_reqs=None, ssl_check_hostname=False)
        assert RedisConfig.from_client(unchecked).endpoint.options.kwargs["ssl_cert_reqs"] is None
        assert not RedisConfig.from_client(kind.Redis()).endpoint.options.tls


@pytest.mark.parametrize("given", ["redis://localhost", None, object()])
def test_anything_but_a_client_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match="from_client takes a client or connection pool"):
        RedisConfig.from_client(given)


CLIENTS: dict[str, Callable[[Server], Any]] = {
    "sync": lambda server: redis.Redis(**plain(server)),
    "sync with retries": lambda server: redis.Redis(
        **plain(server),
        retry_on_error=[redis.TimeoutError],
        health_check_interval=1,
        decode_responses=True,
        socket_keepalive_options={socket.TCP_KEEPIDLE: 30},
    ),
    "asyncio": lambda server: redis.asyncio.Redis(**plain(server), decode_responses=True),
    "asyncio, by url": lambda server: redis.asyncio.Redis.from_url(server.url),
    "RESP3": lambda server: redis.Redis(**plain(server), protocol=3),
    "pool": lambda server: redis.ConnectionPool(**plain(server)),
    "blocking pool": lambda server: redis.BlockingConnectionPool.from_url(server.url),
    "asyncio pool": lambda server: redis.asyncio.ConnectionPool(**plain(server)),
}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_semaphores_work_with_the_settings_of(kind: str, server: Server) -> None:
    await use(RedisConfig.from_client(CLIENTS[kind](server)))
    with server.client() as client:
        assert client.exists(KEY)


async def test_configurations_that_spell_out_the_defaults_share_thread_and_connections(
    server: Server,
) -> None:
    own = RedisConfig(server.url)
    for same in (
        RedisConfig(f"{server.url}?client_name=slotwise"),
        RedisConfig.from_client(redis.Redis(**plain(server))),
        RedisConfig.from_client(redis.Redis(**plain(server), client_name="slotwise")),
        RedisConfig.from_client(redis.asyncio.Redis(**plain(server))),
    ):
        assert shared_client_for(same) is shared_client_for(own)
    over_tls = RedisConfig.from_client(redis.Redis(**plain(server), ssl=True))
    by_url = RedisConfig(f"{server.url.replace('redis:', 'rediss:')}?ssl_cert_reqs=required")
    assert over_tls.endpoint == by_url.endpoint


# ---------------------------------------------------------------- code of the user's own


class OpensItself(redis.connection.Connection):
    """Opens its connections through a bastion, say."""


class OpensItselfForAsyncio(redis.asyncio.connection.Connection):
    """The same for asyncio."""


class OpensItselfBehindSentinels(redis.sentinel.SentinelManagedConnection):
    """The same behind sentinels."""


def greet(connection: Any) -> None:
    connection.on_connect()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: redis.ConnectionPool(connection_class=OpensItself), "OpensItself"),
        (
            lambda: redis.asyncio.ConnectionPool(connection_class=OpensItselfForAsyncio),
            "OpensItselfForAsyncio",
        ),
        (
            lambda: redis.sentinel.SentinelConnectionPool(
                "fleet",
                redis.sentinel.Sentinel([("127.0.0.1", 1)]),
                connection_class=OpensItselfBehindSentinels,
            ),
            "OpensItselfBehindSentinels",
        ),
        (lambda: redis.Redis(redis_connect_func=greet), "redis_connect_func"),
        (lambda: redis.asyncio.Redis(redis_connect_func=greet), "redis_connect_func"),
        (lambda: redis.Redis(ssl=True, ssl_validate_ocsp=True), "ssl_validate_ocsp"),
    ],
)
def test_code_that_would_open_or_greet_by_itself_is_refused(
    make: Callable[[], Any], what: str
) -> None:
    with pytest.raises(TypeError, match=f"can't use {what}: .*use credential_provider="):
        RedisConfig.from_client(make())


# ------------------------------------------------------------- credential providers


PROVIDED: dict[str, Callable[[Server, Tokens], RedisConfig]] = {
    "sync client": lambda server, tokens: RedisConfig.from_client(
        redis.Redis(**plain(server), credential_provider=tokens)
    ),
    "asyncio client": lambda server, tokens: RedisConfig.from_client(
        redis.asyncio.Redis(**plain(server), credential_provider=tokens)
    ),
    "RedisConfig": lambda server, tokens: RedisConfig(server.url, credential_provider=tokens),
}


@pytest.mark.parametrize("kind", PROVIDED)
async def test_a_credential_provider_is_asked_at_every_connect(kind: str, cloud: Server) -> None:
    tokens = Tokens(cloud)
    semaphore = RedisSemaphore(name="s", value=1, config=PROVIDED[kind](cloud, tokens))
    held = await semaphore.acquire()
    before = len(tokens.given)
    with cloud.client() as admin:
        # Its token expired: a server ends the connection, and refuses the token from now on.
        admin.execute_command("ACL", "SETUSER", "cloud", "resetpass")
        admin.execute_command("CLIENT", "KILL", "USER", "cloud")
    assert await asyncio.wait_for(semaphore.release(held), 30)
    assert len(tokens.given) > before
    assert len(set(tokens.given)) == len(tokens.given)
    assert ("cloud", "slotwise") in users(cloud)


async def test_a_provider_that_is_only_for_asyncio_is_asked(cloud: Server) -> None:
    tokens = AsyncTokens(cloud)
    await use(
        RedisConfig.from_client(redis.asyncio.Redis(**plain(cloud), credential_provider=tokens))
    )
    assert tokens.given


async def test_no_message_repeats_a_token_that_is_refused(cloud: Server) -> None:
    class Wrong(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            return "cloud", "s3cr3t-token"

    config = RedisConfig(cloud.url, credential_provider=Wrong())
    with pytest.raises(BackendError, match="refuses the user or password") as caught:
        await use(config)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t-token" in config.endpoint.secrets
    assert "s3cr3t" not in repr(config)


async def test_a_provider_that_fails_is_named_and_asked_again(cloud: Server) -> None:
    class Flaky(Tokens):
        failures = 2

        def get_credentials(self) -> tuple[str, str]:
            if self.failures:
                self.failures -= 1
                raise OSError("token endpoint said s3cr3t")
            return super().get_credentials()

    tokens = Flaky(cloud)
    await use(RedisConfig(cloud.url, credential_provider=tokens, backoff=0.01))
    tokens = Flaky(cloud)
    with pytest.raises(
        BackendError, match=r"credential_provider of .* failed with OSError"
    ) as told:
        await use(RedisConfig(cloud.url, credential_provider=tokens, attempts=1))
    assert "s3cr3t" not in str(told.value)


async def test_a_slow_provider_blocks_neither_the_loop_nor_a_timeout(cloud: Server) -> None:
    class Slow(Tokens):
        may_answer = threading.Event()

        def get_credentials(self) -> tuple[str, str]:
            assert self.may_answer.wait(60)
            return super().get_credentials()

    config = RedisConfig(cloud.url, credential_provider=Slow(cloud))
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    with pytest.raises(slotwise.AcquireTimeout):
        await semaphore.acquire(timeout=0.1)
    Slow.may_answer.set()
    assert await asyncio.wait_for(semaphore.release(await semaphore.acquire()), 30)


def test_a_provider_and_a_password_exclude_each_other() -> None:
    provider = redis.UsernamePasswordCredentialProvider("u", "pw")
    with pytest.raises(ValueError, match="must not have a user or password") as caught:
        RedisConfig("redis://:s3cr3t@localhost", credential_provider=provider)
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(TypeError, match=r"credential_provider must be a redis\.CredentialProvider"):
        RedisConfig(credential_provider="s3cr3t")


def test_equal_settings_share_their_connections_even_with_unhashable_values() -> None:
    class Provider(redis.CredentialProvider):
        def __init__(self, user: str) -> None:
            self.user = user

        def __eq__(self, other: object) -> bool:  # and so it has no hash
            return isinstance(other, Provider) and other.user == self.user

    def config(user: str) -> RedisConfig:
        return RedisConfig(credential_provider=Provider(user))

    assert config("a") == config("a")
    assert hash(config("a")) == hash(config("a"))
    assert config("a") != config("b")


# --------------------------------------------------------------- urls with TLS options


def test_tls_options_of_a_url_are_redis_pys() -> None:
    def kwargs(query: str) -> dict[str, Any]:
        return RedisConfig(f"rediss://host?{query}").endpoint.options.kwargs

    assert kwargs("") == {"ssl_check_hostname": True}
    assert kwargs("ssl_cert_reqs=none") == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    assert kwargs("ssl_check_hostname=False")["ssl_check_hostname"] is False
    assert kwargs("ssl_min_version=771")["ssl_min_version"] == ssl.TLSVersion.TLSv1_2
    for query in ("ssl_cert_reqs=maybe", "ssl_min_version=TLSv1"):
        with pytest.raises(ValueError, match=r"url can't be read: ssl_\w+ is not"):
            kwargs(query)
    with pytest.raises(ValueError, match="needs a scheme with TLS"):
        RedisConfig("redis://host?ssl_ca_certs=/ca")


async def test_a_certificate_file_that_does_not_exist_is_named(server: Server) -> None:
    config = RedisConfig(f"rediss://127.0.0.1:{server.port}?ssl_ca_certs=/no/such/file")
    with pytest.raises(BackendError, match=r"ssl_ca_certs=.* does not exist"):
        await use(config)
