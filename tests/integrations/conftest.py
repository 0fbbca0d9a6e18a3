from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.redis._server import SELDOM_BUSY, Server


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), *SELDOM_BUSY) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A running Redis server with nothing in it."""
    shared_server.flush()
    return shared_server
