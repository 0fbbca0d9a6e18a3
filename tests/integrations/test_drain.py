"""SIGTERM to real servers: those who wait are told to come back, those who hold finish."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.integrations._servers import Client, http, process, wait_until
from tests.redis._server import free_port

ROOT = Path(__file__).parents[2]
APP = "tests.integrations._drain_app:app"


def uvicorn(port: int) -> tuple[str, ...]:
    return ("-m", "uvicorn", APP, "--port", str(port))


def gunicorn(port: int) -> tuple[str, ...]:
    return ("-m", "gunicorn", "-k", "asgi", "-b", f"127.0.0.1:{port}", "--no-control-socket", APP)


def gunicorn_with_uvicorn(port: int) -> tuple[str, ...]:
    worker = "uvicorn.workers.UvicornWorker"
    return ("-m", "gunicorn", "-k", worker, "-b", f"127.0.0.1:{port}", "--no-control-socket", APP)


def hypercorn(port: int) -> tuple[str, ...]:
    return ("-m", "hypercorn", "--workers", "0", "-b", f"127.0.0.1:{port}", APP)


@pytest.mark.parametrize(
    "server",
    [
        uvicorn,
        pytest.param(gunicorn, marks=pytest.mark.soak),
        pytest.param(gunicorn_with_uvicorn, marks=pytest.mark.soak),
        pytest.param(hypercorn, marks=pytest.mark.soak),
    ],
)
def test_sigterm_refuses_those_who_wait_and_lets_holders_finish(server, tmp_path: Path) -> None:
    port, go = free_port(), tmp_path / "go"
    with process(*server(port), port=port, cwd=tmp_path, PYTHONPATH=str(ROOT), GO=str(go)) as run:

        def full() -> list[int]:
            return http.get(f"http://127.0.0.1:{port}/healthz").json()

        with Client(port).send("/slow") as holder:
            wait_until(lambda: full() == [1, 0], "the holder")
            with Client(port).send("/quick") as waiter:
                wait_until(lambda: full() == [1, 1], "the waiter")
                run.send_signal(signal.SIGTERM)
                answer = waiter.read_until(b"violated-policies")
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in answer.lower()
            go.touch()
            assert holder.read_until(b"ok").startswith(b"HTTP/1.1 200")
        run.wait(60)
