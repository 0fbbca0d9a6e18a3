"""The programs in examples/, each started as its first lines say."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integrations._servers import http, process, uvicorn_thread
from tests.redis._server import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


def statuses(url: str, n: int) -> list[int]:
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(lambda _: http.get(url).status_code, range(n)))


@contextlib.contextmanager
def held(limit: str, context: str, environment: dict[str, str]) -> Iterator[None]:
    """Hold slots of an example in another process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{limit}\nwith {context}: print('held', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        holder.communicate(b"\n", timeout=60)


def test_every_example_is_tested_here() -> None:
    named = Path(__file__).read_text()
    assert [each.name for each in EXAMPLES.glob("*.py") if each.stem not in named] == []


@pytest.mark.soak
def test_fastapi_tenants(tmp_path: Path) -> None:
    port = free_port()
    command = ("-m", "uvicorn", "fastapi_tenants:app", "--port", str(port))
    environment = {"PYTHONPATH": str(EXAMPLES), "SLOTWISE_DIR": str(tmp_path / "slots")}
    with process(*command, port=port, cwd=tmp_path, **environment):
        url = f"http://127.0.0.1:{port}/report"
        assert http.get(url).json() == {"report": "done"}
        limit = "from fastapi_tenants import tenants"
        with held(limit, "tenants.cm(2, tenant='acme')", environment):
            refused = http.get(url, headers={"x-tenant": "acme"})
            assert refused.status_code == 429
            assert refused.headers["RateLimit"] == '"tenant";r=0'
            assert http.get(url, headers={"x-tenant": "other"}).status_code == 200
        assert http.get(url, headers={"x-tenant": "acme"}).status_code == 200


async def model(scope, receive, send) -> None:
    await receive()
    fields = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b'{"text": "an answer", "usage": 50}'})


def test_llm_client(tmp_path: Path) -> None:
    with uvicorn_thread(model, lifespan="off") as port:
        outcome = subprocess.run(
            [
                *(sys.executable, EXAMPLES / "llm_client.py"),
                *(f"http://127.0.0.1:{port}/complete", "one prompt", "another", "a third"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert outcome.stdout == "an answer\n" * 3, outcome.stderr
    left = int(outcome.stderr.split()[0])
    assert 20_000 - 3 * 50 <= left <= 20_000  # settled: 50 each, and not what was reserved


@pytest.mark.soak
def test_gunicorn_prefork(tmp_path: Path) -> None:
    port = free_port()
    command = ("-m", "gunicorn", "--workers", "4", "--no-control-socket", "gunicorn_prefork:app")
    environment = {"PYTHONPATH": str(EXAMPLES), "SLOTWISE_DIR": str(tmp_path / "slots")}
    with process(*command, "-b", f"127.0.0.1:{port}", port=port, cwd=tmp_path, **environment):
        url = f"http://127.0.0.1:{port}"
        assert http.get(url).text == "done\n"
        limit = "from gunicorn_prefork import LIMIT"
        with held(limit, "LIMIT.cm(3)", environment):
            assert statuses(url, 4) == [503] * 4  # whichever worker they meet
            assert http.get(f"{url}/healthz").text == "done\n"
        assert http.get(url).text == "done\n"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_celery_tasks(tmp_path: Path, server) -> None:
    environment = {"PYTHONPATH": str(EXAMPLES), "REDIS_URL": server.url}
    command = ("-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "4")
    with process(*command, cwd=tmp_path, **environment):
        outcome = subprocess.run(
            [sys.executable, EXAMPLES / "celery_tasks.py", *["acme"] * 6, "other"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=os.environ | environment,
        )
    assert outcome.stdout.splitlines() == ["acme is up to date"] * 6 + ["other is up to date"]
