"""LimitMiddleware behind each server, with clients that leave at every stage; HTTP/2 too."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
import websockets.sync.client
from tests.integrations._servers import LIMIT, Client, http, process, wait_until
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


def test_background_work_goes_on_without_a_slot_or_a_client(service: Service) -> None:
    assert http.get(f"{service.url}/background").text == "ok"
    service.until(held=0, ended=[])
    service.go()
    service.until(ended=["/background finished"])


def test_a_large_body_that_waited_arrives_whole(service: Service) -> None:
    body = bytes(range(256)) * 8192
    answers = []
    with service.hold():
        thread = threading.Thread(
            target=lambda: answers.append(http.post(f"{service.url}/echo", content=body).content)
        )
        thread.start()
        service.until(held=1, waiting=1)
        service.go()
        thread.join(LIMIT)
    assert answers == [body]


@pytest.mark.parametrize("path", ["/failing", "/failing-late", "/unanswered"])
def test_an_app_that_fails_or_never_answers_frees_its_slot(service: Service, path: str) -> None:
    with Client(service.port).send(path, "Connection: close") as client:
        client.read_all()
    service.until(held=0)
    assert http.get(service.url).text == "ok"


def test_a_connection_is_used_again(service: Service) -> None:
    with Client(service.port) as client:
        for _ in range(3):
            client.send("/quick").read_until(b"ok")
            client.send("/echo", method="POST", body=b"hello").read_until(b"hello")


def test_websockets_wait_in_line_and_leave_it(service: Service) -> None:
    fields = (
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    )
    answers = []

    def talk() -> None:
        with websockets.sync.client.connect(service.url.replace("http", "ws")) as connection:
            connection.send("hello")
            answers.append(connection.recv())

    with service.hold():
        with Client(service.port).send("/websocket", *fields):
            service.until(held=1, waiting=1)
        service.until(held=1, waiting=0)
        thread = threading.Thread(target=talk)
        thread.start()
        service.until(held=1, waiting=1)
        service.go()
        thread.join(LIMIT)
    assert answers == ["HELLO"]
    service.until(held=0)


# ------------------------------------------------------------------------- HTTP/2


class Http2Client:
    """Many requests over one connection, each of which can be left."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._http2.initiate_connection()
        self._flush()
        self.bodies: dict[int, bytes] = {}
        self.complete: set[int] = set()

    def get(self, path: str) -> int:
        number = self._http2.get_next_available_stream_id()
        fields = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "test"}
        self._http2.send_headers(number, list(fields.items()), end_stream=True)
        self._flush()
        self.bodies[number] = b""
        return number

    def leave(self, number: int) -> None:
        self._http2.reset_stream(number)
        self._flush()

    def read_once(self) -> None:
        for event in self._http2.receive_data(self.socket.recv(65536)):
            if isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.complete.add(event.stream_id)
        self._flush()

    def _flush(self) -> None:
        self.socket.sendall(self._http2.data_to_send())


def test_requests_of_one_http2_connection_are_limited_one_by_one(tmp_path: Path) -> None:
    with serving("hypercorn", tmp_path) as service:
        client = Http2Client(service.port)
        first = client.get("/slow")
        service.until(held=1)
        others = [client.get("/quick") for _ in range(6)]
        service.until(held=1, waiting=6)
        for number in others[::2]:
            client.leave(number)
        service.until(held=1, waiting=3)
        service.go()
        expected = {first, *others[1::2]}
        while not expected <= client.complete:
            client.read_once()
        assert {client.bodies[number] for number in expected} == {b"ok"}
        for path in ("/silent", "/endless"):
            http.get(f"{service.url}/reset")
            number = client.get(path)
            while b"\n" not in client.bodies[number]:
                client.read_once()
            client.leave(number)
            service.until(held=0, ended=[f"{path} cancelled"])
        client.socket.close()
