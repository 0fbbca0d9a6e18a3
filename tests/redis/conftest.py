from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from tests.redis._server import Server

from slotwise.redis import RedisConfig
from slotwise.redis.process import _processes


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A running server with nothing in it; tests that stop servers start their own."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client, to look at keys with."""
    with server.client(decode_responses=True) as client:
        yield client


@pytest.fixture
def config(server: Server) -> RedisConfig:
    return RedisConfig(server.url)


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """Who is left behind beats on, and complains when the server has stopped."""
    yield
    left = {
        str(config.endpoint): [*process.holders, *process.waiters]
        for config, process in list(_processes.items())
        if process.holders or process.waiters
    }
    assert left == {}
