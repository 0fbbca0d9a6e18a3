"""Our handler of SIGTERM among those of others."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integrations._servers import Client, http, process, wait_until
from tests.redis._server import free_port

from slotwise.integrations._sigterm import handler


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What was called at SIGTERM, with a server's handler that is there from the beginning."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("server"))
    yield heard
    signal.signal(signal.SIGTERM, before)


def test_all_listeners_are_called_before_the_handler_of_the_server(heard: list[str]) -> None:
    def first() -> None:
        heard.append("first")

    def second() -> None:
        heard.append("second")

    for listener in (first, second, first, second):  # at start-up, and with the first request
        handler.add(listener)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["first", "second", "server"]
    handler.remove(first)
    handler.remove(first)
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["second", "server"]
    handler.remove(second)
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["server"]


def test_a_handler_that_comes_later_and_calls_ours_is_called_once(heard: list[str]) -> None:
    def listener() -> None:
        heard.append("listener")

    handler.add(listener)
    ours = signal.getsignal(signal.SIGTERM)

    def later(number, frame) -> None:
        heard.append("later")
        ours(number, frame)

    signal.signal(signal.SIGTERM, later)
    handler.add(listener)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["listener", "later", "server"]
    handler.remove(listener)
    assert signal.getsignal(signal.SIGTERM) is later
    heard.clear()
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["later", "server"]


def test_nothing_is_installed_where_sigterm_ends_the_process_or_in_another_thread(heard) -> None:
    def listener() -> None:
        heard.append("listener")

    thread = threading.Thread(target=handler.add, args=[listener])
    thread.start()
    thread.join()
    handler.remove(listener)
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["server"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handler.add(listener)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ---------------------------------------------------------------------- draining


ROOT = Path(__file__).parents[2]
APP = "tests.integrations._drain_app:app"


# As the page says.
RECIPES = {
    "uvicorn app:app --timeout-graceful-shutdown 30": "--port {port}",
    "gunicorn -k asgi --graceful-timeout 30 app:app": "-b 127.0.0.1:{port} --no-control-socket",
    "gunicorn -k uvicorn.workers.UvicornWorker --graceful-timeout 30 app:app": (
        "-b 127.0.0.1:{port} --no-control-socket"
    ),
    "hypercorn --workers 0 --graceful-timeout 30 app:app": "-b 127.0.0.1:{port}",
}


def test_the_page_has_these_recipes() -> None:
    page = (ROOT / "docs" / "web-servers.md").read_text()
    assert [recipe for recipe in RECIPES if f"`{recipe}`" not in page] == []


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=[] if recipe.startswith("uvicorn") else pytest.mark.soak)
        for recipe in RECIPES
    ],
)
def test_sigterm_refuses_those_who_wait_and_lets_holders_finish(
    recipe: str, tmp_path: Path
) -> None:
    port, go = free_port(), tmp_path / "go"
    words = recipe.replace("app:app", APP).split() + RECIPES[recipe].format(port=port).split()
    with process("-m", *words, port=port, cwd=tmp_path, PYTHONPATH=str(ROOT), GO=str(go)) as run:

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
            if recipe.startswith("hypercorn"):  # which gives holders 3 s unless it is told
                time.sleep(4)
            go.touch()
            assert holder.read_until(b"ok").startswith(b"HTTP/1.1 200")
        run.wait(60)
