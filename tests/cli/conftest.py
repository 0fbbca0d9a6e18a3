from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli._shell import Shell
from tests.redis._server import SELDOM_BUSY, Server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), *SELDOM_BUSY) as server:
        yield server


@pytest.fixture
def server(redis_server: Server) -> Server:
    """A running server with nothing in it."""
    redis_server.flush()
    return redis_server


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell whose semaphores are in a directory of their own."""
    shell = Shell(f"process://{tmp_path}/slots", tmp_path)
    yield shell
    shell.clean_up()


@pytest.fixture
def redis_shell(server: Server, tmp_path: Path) -> Iterator[Shell]:
    """A shell whose semaphores are on a server."""
    shell = Shell(server.url, tmp_path)
    yield shell
    shell.clean_up()


@pytest.fixture(params=["process", "redis"])
def any_shell(request: pytest.FixtureRequest) -> Shell:
    """Once with a directory, once with a server: what a person sees is the same."""
    found: Shell = request.getfixturevalue("shell" if request.param == "process" else "redis_shell")
    return found


@pytest.fixture(params=["process", pytest.param("redis", marks=pytest.mark.soak)])
def most_shells(request: pytest.FixtureRequest) -> Shell:
    """Like `any_shell`; with a server only in the soak tests, as nothing there depends on it."""
    found: Shell = request.getfixturevalue("shell" if request.param == "process" else "redis_shell")
    return found
