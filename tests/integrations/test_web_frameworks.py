"""FastAPI, Flask, Django and plain WSGI apps behind real servers.

Each app has ``/stream``, which yields a chunk, waits for the test, and yields the last one.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import django
import fastapi
import flask
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path
from fastapi.responses import StreamingResponse
from tests.integrations._servers import (
    Client,
    Switch,
    http,
    uvicorn_thread,
    wait_until,
    wsgi_thread,
)

from slotwise import (
    Limit,
    MemorySemaphore,
    Rate,
    RateLimit,
    Semaphore,
    Tier,
    Tiers,
    semaphore,
)
from slotwise.integrations import asgi
from slotwise.integrations.django import limited_view as django_limited_view
from slotwise.integrations.fastapi import limited_by
from slotwise.integrations.flask import limited_view
from slotwise.integrations.wsgi import LimitMiddleware
from slotwise.testing import FakeClock

LIMIT = MemorySemaphore(1, name="web frameworks")
go_on = threading.Event()
unusable: list[Limit] = []  # the limit of tests whose limit can't be used
django_views: list[Any] = []  # and the view of these tests


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    go_on.clear()
    yield
    go_on.set()
    wait_until(lambda: held() == 0, "everything released")


def held() -> int:
    return LIMIT.stats_sync().acquired_slots


def chunks() -> Iterator[bytes]:
    yield b"first\n"
    while not go_on.is_set():
        time.sleep(0.005)
    yield b"last\n"


async def async_chunks() -> AsyncIterator[bytes]:
    yield b"first\n"
    while not go_on.is_set():
        await asyncio.sleep(0.005)
    yield b"last\n"


def holds_until_the_last_chunk(port: int, prefix: str = "", refused_by: int = 503) -> None:
    """What is promised of every framework."""
    url = f"http://127.0.0.1:{port}{prefix}"
    assert http.get(f"{url}/quick").text == "ok"
    wait_until(lambda: held() == 0, "released")
    with Client(port).send(f"{prefix}/stream") as client:
        client.read_until(b"first")
        assert held() == 1
        refused = http.get(f"{url}/quick")
        assert refused.status_code == refused_by
        assert int(refused.headers["Retry-After"]) >= 1  # more if the first request took long
        assert refused.headers["RateLimit"] == '"web frameworks";r=0'
        go_on.set()
        client.read_until(b"last")
    wait_until(lambda: held() == 0, "released")
    assert http.get(f"{url}/failing").status_code == 500
    wait_until(lambda: held() == 0, "released")
    assert http.get(f"{url}/quick").text == "ok"


def releases_what_is_never_sent(port: int) -> None:
    """Responses that something behind the view drops are not closed, and may be in a cycle."""
    gc.disable()
    try:
        assert http.get(f"http://127.0.0.1:{port}/dropped").text == "ok"
        wait_until(lambda: held() == 0, "released")
        assert http.get(f"http://127.0.0.1:{port}/unsent").status_code == 500
        wait_until(lambda: held() == 0, "released")
    finally:
        gc.enable()


# --------------------------------------------------------------------------- WSGI


def wsgi_app(environ, start_response):
    if environ["PATH_INFO"] == "/failing":
        raise RuntimeError("the app's own")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return chunks() if environ["PATH_INFO"] == "/stream" else [b"ok"]


def test_wsgi_holds_the_slot_until_the_response_is_closed(capsys) -> None:
    middleware = LimitMiddleware(wsgi_app, LIMIT)
    with wsgi_thread(middleware) as port:
        holds_until_the_last_chunk(port)
        assert http.get(f"http://127.0.0.1:{port}/healthz").text == "ok"
    assert middleware.refused == 1


def test_wsgi_frees_the_slot_of_a_client_that_has_left(capsys) -> None:
    def endless(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        while True:
            yield b"chunk\n" * 1000

    with wsgi_thread(LimitMiddleware(endless, LIMIT, wait=30)) as port:
        with Client(port).send() as client:
            client.read_until(b"chunk")
        wait_until(lambda: held() == 0, "released")


def test_wsgi_observes_without_refusing() -> None:
    middleware = LimitMiddleware(wsgi_app, LIMIT, observe=True)
    with wsgi_thread(middleware) as port, LIMIT.cm():
        assert http.get(f"http://127.0.0.1:{port}").text == "ok"
    assert middleware.would_refuse == 1


# -------------------------------------------------------------------------- Flask


def test_flask_holds_the_slot_until_the_response_is_closed(capsys, caplog) -> None:
    app = flask.Flask("test")

    @app.get("/quick")
    @limited_view(LIMIT)
    def quick():
        return "ok"

    @app.get("/stream")
    @limited_view(lambda request: LIMIT if request.path == "/stream" else None, wait=30)
    def stream():
        return chunks(), 200, {"Content-Type": "text/plain"}

    @app.get("/failing")
    @limited_view(LIMIT)
    def failing():
        raise RuntimeError("the view's own")

    @app.get("/dropped")
    @limited_view(LIMIT)
    def dropped():
        return "never sent"

    @app.get("/unsent")
    @limited_view(LIMIT)
    def unsent():
        return "never sent"

    @app.after_request
    def replace_response(response):
        if flask.request.path == "/unsent":
            raise RuntimeError("not of the view")
        return flask.Response("ok") if flask.request.path == "/dropped" else response

    with wsgi_thread(app) as port:
        holds_until_the_last_chunk(port)
        releases_what_is_never_sent(port)


# ------------------------------------------------------------------------- Django


@django_limited_view(LIMIT)
def django_quick(request):
    return HttpResponse("ok")


@django_limited_view(LIMIT)
def django_stream(request):
    return StreamingHttpResponse(chunks())


@django_limited_view(LIMIT)
def django_failing(request):
    raise RuntimeError("the view's own")


def django_dropped(request):  # as by a middleware
    django_quick(request)
    return HttpResponse("ok")


def django_unsent(request):
    response = django_quick(request)
    raise RuntimeError(f"not of the view: {response}")


@django_limited_view(LIMIT)
async def django_async_quick(request):
    return HttpResponse("ok")


@django_limited_view(lambda request: LIMIT, wait=30)
async def django_async_stream(request):
    return StreamingHttpResponse(async_chunks())


@django_limited_view(LIMIT)
async def django_async_failing(request):
    raise RuntimeError("the view's own")


def django_unusable(request):
    return django_views[0](request)


async def django_async_unusable(request):
    return await django_views[0](request)


class urls:  # noqa: N801 - stands for a module
    urlpatterns = (
        path("quick", django_quick),
        path("stream", django_stream),
        path("failing", django_failing),
        path("dropped", django_dropped),
        path("unsent", django_unsent),
        path("async/quick", django_async_quick),
        path("async/stream", django_async_stream),
        path("async/failing", django_async_failing),
        path("unusable", django_unusable),
        path("async/unusable", django_async_unusable),
    )


@pytest.fixture(scope="module", autouse=True)
def django_settings() -> None:
    if not settings.configured:
        settings.configure(
            ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], SECRET_KEY="x", LOGGING_CONFIG=None
        )
        django.setup(set_prefix=False)


def test_django_holds_the_slot_until_the_response_is_closed(caplog) -> None:
    with wsgi_thread(WSGIHandler()) as port:
        holds_until_the_last_chunk(port)
        releases_what_is_never_sent(port)


def test_async_django_holds_the_slot_until_the_response_is_closed(caplog, serve) -> None:
    serve(ASGIHandler())
    holds_until_the_last_chunk(serve.port, "/async")


# ------------------------------------------------------------------------ FastAPI


@pytest.fixture(scope="module")
def serve():
    switch = Switch()
    with uvicorn_thread(switch, lifespan="off") as port:

        def serve(app) -> None:
            switch.app = app

        serve.port = port
        yield serve


def test_fastapi_holds_the_slot_until_the_response_is_complete(serve, caplog) -> None:
    app = fastapi.FastAPI()
    guard = limited_by(LIMIT)
    limited = {"dependencies": [fastapi.Depends(guard)], "responses": guard.responses}

    @app.get("/quick", **limited, response_class=fastapi.responses.PlainTextResponse)
    async def quick():
        return "ok"

    @app.get("/stream", **limited)
    async def stream():
        return StreamingResponse(async_chunks())

    @app.get("/failing", **limited)
    def failing():
        raise RuntimeError("the route's own")

    @app.get("/background", **limited)
    async def background(tasks: fastapi.BackgroundTasks):
        async def work() -> None:
            async for _ in async_chunks():
                pass
            done.append(held())

        tasks.add_task(work)
        return "ok"

    done: list[int] = []
    serve(app)
    holds_until_the_last_chunk(serve.port)
    go_on.clear()
    url = f"http://127.0.0.1:{serve.port}"
    assert http.get(f"{url}/background").json() == "ok"
    wait_until(lambda: held() == 0, "released before the background work")
    go_on.set()
    wait_until(lambda: done, "the background work")
    assert done == [0]
    documented = http.get(f"{url}/openapi.json").json()["paths"]["/quick"]["get"]["responses"]
    assert {"429", "503"} <= documented.keys()


def test_fastapi_limits_each_tenant(serve) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 5))
    app = fastapi.FastAPI()
    guard = limited_by(tiers, key=lambda request: {"tenant": request.path_params["tenant"]})

    @app.get("/{tenant}", dependencies=[fastapi.Depends(guard)])
    async def route(tenant: str):
        return StreamingResponse(async_chunks())

    serve(app)
    with Client(serve.port).send("/acme") as client:
        client.read_until(b"first")
        refused = http.get(f"http://127.0.0.1:{serve.port}/acme")
        assert refused.status_code == 429
        assert refused.headers["RateLimit-Policy"] == '"tenant";q=1;qu="concurrent-requests"'
        with Client(serve.port).send("/other") as other:
            other.read_until(b"first")
        go_on.set()
        client.read_until(b"last")


# ------------------------------------------------- limits that can't be used as they are


async def asgi_app(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def fastapi_app(find) -> Any:
    app = fastapi.FastAPI()

    @app.get("/unusable", dependencies=[fastapi.Depends(limited_by(find))])
    async def route():
        return "ok"

    return app


async def django_coroutine(request):
    return HttpResponse("ok")


def flask_app(find) -> Any:
    app = flask.Flask("unusable")
    app.get("/unusable")(limited_view(find)(lambda: "ok"))
    return app


@pytest.fixture(params=["asgi", "asgi wait", "fastapi", "async django", "wsgi", "flask", "django"])
def framework_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a framework answers whose limit is `unusable`."""

    def find(_request: object) -> Limit:
        return unusable[0]

    asgi_apps = {
        "asgi": lambda: asgi.LimitMiddleware(asgi_app, find),
        "asgi wait": lambda: asgi.LimitMiddleware(asgi_app, find, wait=0.01),
        "fastapi": lambda: fastapi_app(find),
        "async django": ASGIHandler,
    }
    view = django_coroutine if request.param == "async django" else lambda _: HttpResponse("ok")
    django_views[:] = [django_limited_view(find)(view)]
    wsgi_apps = {
        "wsgi": lambda: LimitMiddleware(wsgi_app, find),
        "flask": lambda: flask_app(find),
        "django": WSGIHandler,
    }
    prefix = "/async" if request.param == "async django" else ""
    if request.param in asgi_apps:
        serve = request.getfixturevalue("serve")
        serve(asgi_apps[request.param]())
        yield f"http://127.0.0.1:{serve.port}{prefix}/unusable"
        return
    with wsgi_thread(wsgi_apps[request.param]()) as port:
        yield f"http://127.0.0.1:{port}/unusable"


def of_another_value(tmp_path: Path) -> Semaphore:
    return semaphore("rolled out", 20, url=f"process://{tmp_path}/slots")


def of_another_rate(tmp_path: Path) -> RateLimit:
    url = f"process://{tmp_path}/slots"
    RateLimit("rolled out", Rate(10, per=3600), url=url).acquire_sync()  # in use until it is full
    return RateLimit("rolled out", Rate(20, per=3600), url=url)


def of_other_tiers(tmp_path: Path) -> Limit:
    return tiers_rolled_out(tmp_path, 20).at(user="bob")


def in_this_process(_tmp_path: Path) -> Semaphore:
    return MemorySemaphore(20, name="rolled out")


def tiers_rolled_out(tmp_path: Path, value: int) -> Tiers:
    tiers = Tier("user", 5, keyed=True), Tier("all", value)
    return Tiers(*tiers, name="rolled out too", url=f"process://{tmp_path}/slots")


@contextmanager
def with_other_values(tmp_path: Path) -> Iterator[None]:
    """While a worker of the release before holds them; Tiers in memory could not be made."""
    with ExitStack() as held_by_others:
        url = f"process://{tmp_path}/slots"
        held_by_others.enter_context(semaphore("rolled out", 10, url=url).cm())
        held_by_others.enter_context(MemorySemaphore(10, name="rolled out").cm())
        held_by_others.enter_context(tiers_rolled_out(tmp_path, 10).cm(user="ann"))
        yield


def in_no_directory(tmp_path: Path) -> Semaphore:
    (tmp_path / "file").touch()
    return semaphore("web", 20, url=f"process://{tmp_path}/file")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (of_another_value, "'rolled out' is in use with 10 slots, not 20"),
        (of_another_rate, "'rolled out' is in use as 10 per 3600 s, burst 1, not 20 per"),
        (of_other_tiers, "the tiers of 'rolled out too' are in use as all=10, not all=20"),
        (in_this_process, "'rolled out' is in use with 10 slots, not 20"),
        (in_no_directory, "not a directory: set SLOTWISE_DIR to one"),
    ],
)
def test_a_limit_that_cannot_be_used_is_a_503_for_clients_and_one_error_for_operators(
    framework_url: str, make, words: str, tmp_path: Path, caplog
) -> None:
    clock = FakeClock()
    unusable[:] = [make(tmp_path)]
    with clock, with_other_values(tmp_path):
        refused = [http.get(framework_url) for _ in range(3)]
        assert [each.status_code for each in refused] == [503, 503, 503]
        assert [each.headers["Retry-After"] for each in refused] == ["1", "1", "1"]
        assert str(tmp_path) not in refused[0].text  # what clients should not see
        assert "rolled out" not in refused[0].text
        clock.advance(61)
        assert http.get(framework_url).status_code == 503
    logged = [each.getMessage() for each in caplog.records if each.name == "slotwise.integrations"]
    assert len(logged) == 2
    assert words in logged[0]
    assert logged[1].endswith("(2 more requests since the last time)")
