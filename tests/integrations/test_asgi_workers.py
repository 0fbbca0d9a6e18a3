"""Four uvicorn workers behind one limit: never above it, and nothing left held."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integrations._servers import Client, process, wait_until
from tests.redis._server import free_port

from slotwise import semaphore

ROOT = Path(__file__).parents[2]
APP = "tests.integrations._worker_app:app"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scope", ["redis", "process"])
def test_a_thousand_requests_of_which_a_third_leave_early(scope, server, tmp_path: Path) -> None:
    url = server.url if scope == "redis" else f"process://{tmp_path / 'slots'}"
    port = free_port()
    places = tmp_path / "places"
    places.mkdir()
    environment = {"PYTHONPATH": str(ROOT), "LIMIT_URL": url, "PLACES": str(places)}
    command = ("-m", "uvicorn", APP, "--workers", "4", "--port", str(port), "--log-level", "error")

    def ask(number: int) -> bytes:
        dice = random.Random(number)
        with Client(port).send("/", "Connection: close") as client:
            if number % 3 == 0:
                client.socket.settimeout(dice.uniform(0.001, 0.05))
                try:
                    client.socket.recv(10)
                except TimeoutError:
                    pass
                return b""
            return client.read_all()

    with process(*command, port=port, cwd=tmp_path, **environment):
        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(ask, range(1000)))
        limit = semaphore("workers", 5, url=url)
        wait_until(lambda: limit.stats_sync().acquired_slots == 0, "nothing held")
        assert limit.stats_sync().waiting == 0
    statuses = {answer[9:12] for answer in answers if answer}
    assert statuses <= {b"200", b"503"}
    assert sum(b"over" in answer for answer in answers) == 0
    assert sum(b"ok" in answer for answer in answers) > 5
