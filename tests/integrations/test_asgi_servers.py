"""LimitMiddleware behind each server, with clients that leave at every stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integrations._servers import Client, http, process, wait_until
from tests.redis._server import free_port

ROOT = Path(__file__).parents[2]
APP = "tests.integrations._leaving_app:app"
SERVERS = {
    "uvicorn": ("-m", "uvicorn", APP, "--port", "{port}"),
    "gunicorn": ("-m", "gunicorn", "-k", "asgi", "-b", "127.0.0.1:{port}", APP),
    "hypercorn": ("-m", "hypercorn", "--workers", "0", "-b", "127.0.0.1:{port}", APP),
}
pytestmark = pytest.mark.soak


class Service:
    """The app of ``_leaving_app`` behind a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def state(self) -> dict:
        return http.get(f"{self.url}/state").json()

    def until(self, **expected) -> None:
        wait_until(
            lambda: expected.items() <= self.state().items(), f"{expected}, not {self.state()}"
        )

    def hold(self) -> Client:
        client = Client(self.port).send("/slow")
        self.until(held=1)
        return client

    def go(self) -> None:
        http.get(f"{self.url}/go")


@contextlib.contextmanager
def serving(server: str, folder: Path, **environment: str) -> Iterator[Service]:
    port = free_port()
    command = [word.format(port=port) for word in SERVERS[server]]
    if server == "gunicorn":
        command.append("--no-control-socket")
    with process(*command, port=port, cwd=folder, PYTHONPATH=str(ROOT), **environment):
        yield Service(port)


@pytest.fixture(scope="module", params=SERVERS)
def running(request, tmp_path_factory) -> Iterator[Service]:
    with serving(request.param, tmp_path_factory.mktemp("server")) as service:
        yield service


@pytest.fixture
def service(running: Service) -> Iterator[Service]:
    http.get(f"{running.url}/reset")
    yield running
    running.go()
    running.until(held=0, waiting=0)


@pytest.mark.parametrize("body", [b"", b"x" * 1000])
def test_a_client_that_leaves_the_line_loses_its_place(service: Service, body: bytes) -> None:
    with service.hold():
        with Client(service.port).send("/echo", method="POST", body=body):
            service.until(held=1, waiting=1)
        service.until(held=1, waiting=0)


@pytest.mark.parametrize("path", ["/silent", "/endless"])
def test_leaving_a_response_cancels_the_call(service: Service, path: str) -> None:
    with Client(service.port).send(path) as client:
        client.read_until(b"\n")
    service.until(held=0, ended=[f"{path} cancelled"])


def test_leaving_before_the_response_lets_the_app_finish(service: Service) -> None:
    service.hold().leave()
    service.until(held=1, ended=[])
    service.go()
    service.until(held=0, ended=["/slow finished"])


@pytest.mark.parametrize("server", SERVERS)
def test_leaving_before_the_response_cancels_if_asked_for(server: str, tmp_path: Path) -> None:
    with serving(server, tmp_path, ON_DISCONNECT="cancel") as service:
        service.hold().leave()
        service.until(held=0, ended=["/slow cancelled"])
