from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.redis._server import Server


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A running Redis server with nothing in it."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server
