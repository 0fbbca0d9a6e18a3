from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
import redis
from tests.redis._server import Server, patient_config, wait_for_answers

from slotwise._core import unreachable
from slotwise.redis import RedisConfig
from slotwise.redis._shared_client import _shared_clients

_has_failed = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A running server with nothing in it; tests that stop servers start their own.

    Whatever a test of ours leaves there expires.
    """
    shared_server.flush()
    yield shared_server
    if not request.node.stash.get(_has_failed, False) and not request.node.get_closest_marker(
        "others_keys"
    ):
        with shared_server.client(decode_responses=True, encoding_errors="replace") as client:
            left = [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]
        assert not left, "keys that never expire"


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client with one connection, to look at keys with."""
    options = {"decode_responses": True, "encoding_errors": "surrogateescape"}
    with server.client(single_connection_client=True, **options) as client:
        yield client


@contextmanager
def listening(client: redis.Redis, client_id: str) -> Iterator[None]:
    """Have open what a living process has for its messages.

    Afterwards the server knows that nobody listens: it may hear of a closed connection after the
    next call on another.
    """

    def hear(kind: str) -> None:
        while (listener.get_message(timeout=10) or {}).get("type") != kind:
            pass

    with client.pubsub() as listener:
        listener.subscribe(f"slotwise:{client_id}")
        hear("subscribe")
        yield
        listener.unsubscribe()
        hear("unsubscribe")


@pytest.fixture
def x_listens(client: redis.Redis) -> Iterator[None]:
    """The process of the claims sw-x-...: it lives, and only some of its claims fall silent."""
    with listening(client, "x"):
        yield


@pytest.fixture
def rare_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a ``heartbeat_max_interval`` of 3000 s, none comes while a test lasts."""
    monkeypatch.setattr(unreachable, "_LONGEST_PING", 600.0)


@pytest.fixture
def config(server: Server) -> RedisConfig:
    return patient_config(server.url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_has_failed] = report.failed
    return report


@pytest.fixture(autouse=True)
def nobody_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nobody of this process holds or waits after a test, unless it failed in the middle."""
    yield
    if not request.node.stash.get(_has_failed, False):
        clients = list(_shared_clients.values())
        assert not [claim for each in clients for claim in (*each.holders, *each.waiters)]


@pytest.fixture(autouse=True)
def patient_callers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server lives, and how long callers wait for it is not what is tested."""
    if "faults" not in request.path.name and request.path.parent.name != "faults":
        wait_for_answers(monkeypatch)
