"""LimitMiddleware in front of a real uvicorn."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace

import httpx
import pytest
import websockets.sync.client
from tests.integrations._servers import Client, Switch, http, uvicorn_thread, wait_until
from websockets.exceptions import InvalidStatus

from slotwise import Adaptive, Errors, MemorySemaphore, Rate, RateLimit, Tier, Tiers, semaphore
from slotwise.integrations import _admission, _asgi_exchange
from slotwise.integrations.asgi import LimitMiddleware


class App:
    """What each path does is its name; threads of the test let it go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.running = 0
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope, receive, send) -> None:
        path = scope["path"]
        self.running += 1
        try:
            if scope["type"] == "websocket":
                await self.websocket(receive, send)
            else:
                await getattr(self, path.strip("/") or "quick")(receive, send)
            self.finished.append(path)
        except asyncio.CancelledError:
            self.cancelled.append(path)
            raise
        finally:
            self.running -= 1

    async def until_told(self) -> None:
        while not self.go_on.is_set():
            await asyncio.sleep(0.005)

    async def quick(self, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    healthz = quick

    async def slow(self, receive, send) -> None:
        await self.until_told()
        await self.quick(receive, send)

    async def endless(self, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not self.go_on.is_set():
            await send({"type": "http.response.body", "body": b"chunk\n", "more_body": True})
            await asyncio.sleep(0.005)
        await send({"type": "http.response.body", "body": b""})

    async def silent(self, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        await self.until_told()
        await send({"type": "http.response.body", "body": b""})

    async def background(self, receive, send) -> None:
        await self.quick(receive, send)
        await self.until_told()

    async def echo(self, receive, send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def failing(self, receive, send) -> None:
        raise RuntimeError("the app's own")

    async def websocket(self, receive, send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": message["text"].upper()})


@pytest.fixture
def app():
    app = App()
    yield app
    app.go_on.set()


@pytest.fixture(scope="module")
def switch():
    switch = Switch()
    with uvicorn_thread(switch, lifespan="off") as port:
        switch.port = port
        yield switch


@pytest.fixture
def serve(app: App, switch: Switch):
    """A function that serves the app behind the middleware."""

    def start(limit, **options) -> tuple[LimitMiddleware, str]:
        middleware = switch.app = LimitMiddleware(app, limit, **options)
        middleware.port = switch.port
        return middleware, f"http://127.0.0.1:{switch.port}"

    yield start
    app.go_on.set()
    wait_until(lambda: app.running == 0, "the end of all requests")


def held(limit) -> int:
    return limit.stats_sync().acquired_slots


def waiting(limit) -> int:
    return limit.stats_sync().waiting


def in_threads(*calls: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_a_full_limit_is_refused_with_the_fields_and_the_problem_of_the_draft(app, serve) -> None:
    limit = MemorySemaphore(1, name='ap"i é')
    middleware, url = serve(limit)
    with Client(middleware.port).send("/slow") as holder:
        wait_until(lambda: app.running, "the first request")
        refused = http.get(url)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "1"
        name = '"ap%22i %C3%A9"'
        assert refused.headers["RateLimit-Policy"] == f'{name};q=1;qu="concurrent-requests"'
        assert refused.headers["RateLimit"] == f"{name};r=0"
        assert refused.headers["Content-Type"] == "application/problem+json"
        problem = refused.json()
        assert problem.pop("title")
        assert problem.pop("detail")
        assert problem == {
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "status": 503,
            "violated-policies": ['ap"i é'],
        }
        assert http.head(url).status_code == 503
        assert http.get(f"{url}/healthz").text == "ok"
        app.go_on.set()
        assert holder.read_until(b"ok").startswith(b"HTTP/1.1 200")
    assert http.get(url).text == "ok"
    wait_until(lambda: held(limit) == 0, "everything released")
    assert middleware.refused == 2


def test_a_client_that_asks_for_too_much_gets_429_and_the_others_503(app, serve) -> None:
    tiers = Tiers(
        Tier("tenant", 1, keyed=True),
        Tier("requests", rate=Rate(600, per=60, burst=3)),
        Tier("all", 2),
    )

    def tenant_of(scope):
        tenant = dict(scope["headers"]).get(b"tenant")
        return None if tenant is None else {"tenant": tenant.decode()}

    middleware, url = serve(tiers, key=tenant_of)

    def get(tenant: str) -> httpx.Response:
        return http.get(url, headers={"tenant": tenant})

    with Client(middleware.port).send("/slow", "tenant: a"):
        wait_until(lambda: app.running == 1, "the first request")
        refused = get("a")
        assert refused.status_code == 429
        assert refused.headers["RateLimit-Policy"] == '"tenant";q=1;qu="concurrent-requests"'
        assert refused.json()["type"].endswith("#quota-exceeded")
        with Client(middleware.port).send("/slow", "tenant: b"):
            wait_until(lambda: app.running == 2, "the second request")
            refused = get("c")
            assert refused.status_code == 503
            assert refused.json()["violated-policies"] == ["all"]
            refused = get("a")
            assert refused.status_code == 429
            assert refused.json()["violated-policies"] == ["tenant", "all"]
            assert refused.headers["RateLimit"] == '"tenant";r=0, "all";r=0'
        assert http.get(url).text == "ok"  # no key: unlimited
        app.go_on.set()


def test_a_rate_is_refused_with_429_and_its_window(serve) -> None:
    _, url = serve(RateLimit("crm", Rate(600, per=600, burst=1)))
    assert http.get(url).status_code == 200
    refused = http.get(url)
    assert refused.status_code == 429
    assert refused.headers["RateLimit-Policy"] == '"crm";q=600;w=600'
    assert int(refused.headers["Retry-After"]) >= 1


async def test_retry_after_is_known_from_the_holds_of_the_middleware(app, monkeypatch) -> None:
    limit = MemorySemaphore(2, name="timed")
    now = 0.0
    monkeypatch.setattr(_admission, "time", SimpleNamespace(monotonic=lambda: now))

    async def work(scope, receive, send) -> None:
        nonlocal now
        now += 8.5
        await app.quick(receive, send)

    middleware = LimitMiddleware(work, limit)
    sent = []

    async def send(message) -> None:
        sent.append(message)

    client = LeavingClient("never")
    await middleware(HTTP, client.receive, send)
    async with limit.cm(2):
        sent.clear()
        await middleware(HTTP, client.receive, send)
    assert sent[0]["status"] == 503
    # Holds of 8.5 s on two slots: one is free every 4.25 s, and whole seconds are rounded up.
    assert dict(sent[0]["headers"])[b"retry-after"] == b"5"


def test_the_slot_is_held_until_the_last_chunk(app, serve) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit)
    with Client(middleware.port).send("/endless") as client:
        client.read_until(b"chunk")
        assert held(limit) == 1
        assert http.get(url).status_code == 503
        app.go_on.set()
        client.read_until(b"0\r\n\r\n")
    wait_until(lambda: held(limit) == 0, "released")
    assert app.finished == ["/endless"]


@pytest.mark.parametrize("path", ["/endless", "/silent"])
def test_leaving_a_response_cancels_the_call_and_frees_the_slot(app, serve, path) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit)
    client = Client(middleware.port).send(path)
    client.read_until(b"\n")
    client.leave()
    wait_until(lambda: held(limit) == 0, "released")
    assert app.cancelled == [path]
    assert app.running == 0
    assert http.get(url).text == "ok"


def test_leaving_before_the_response_lets_the_app_finish_with_its_slot(app, serve) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit)
    client = Client(middleware.port).send("/slow")
    wait_until(lambda: app.running, "the request")
    client.leave()
    assert http.get(url).status_code == 503
    assert held(limit) == app.running == 1
    app.go_on.set()
    wait_until(lambda: held(limit) == 0, "released")
    assert (app.finished, app.cancelled) == (["/slow"], [])


def test_leaving_before_the_response_cancels_the_app_if_asked_for(app, serve) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit, on_disconnect="cancel")
    client = Client(middleware.port).send("/slow", method="POST", body=b"x")
    wait_until(lambda: app.running, "the request")
    client.leave()
    wait_until(lambda: held(limit) == 0, "released")
    assert (app.finished, app.cancelled) == ([], ["/slow"])
    assert http.post(f"{url}/echo", content=b"body").text == "body"


def test_a_client_that_leaves_the_line_loses_its_place_at_once(app, serve) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit, wait=60)
    holder = Client(middleware.port).send("/slow")
    wait_until(lambda: app.running, "the holder")
    leaver = Client(middleware.port).send("/quick")
    wait_until(lambda: waiting(limit) == 1, "the line")
    answers = []
    # What a waiter has sent already is kept for the app.
    body = b"b" * 100_000
    [stayer] = in_threads(lambda: answers.append(http.post(f"{url}/echo", content=body).content))
    wait_until(lambda: waiting(limit) == 2, "both in line")
    leaver.leave()
    wait_until(lambda: waiting(limit) == 1, "the first one gone")
    app.go_on.set()
    holder.read_until(b"ok")
    holder.leave()
    stayer.join()
    assert answers == [body]
    wait_until(lambda: held(limit) == 0, "released")
    assert sorted(app.finished) == ["/echo", "/slow"]


def test_bodies_larger_than_what_is_kept_arrive_whole(app, serve) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit, wait=60)
    body = bytes(range(256)) * 8192  # 2 MiB
    holder = Client(middleware.port).send("/slow")
    wait_until(lambda: app.running, "the holder")
    answers = []
    [thread] = in_threads(lambda: answers.append(http.post(f"{url}/echo", content=body).content))
    wait_until(lambda: waiting(limit) == 1, "the line")
    app.go_on.set()
    thread.join()
    assert answers == [body]
    holder.leave()


def test_background_work_holds_no_slot(app, serve) -> None:
    limit = MemorySemaphore(1)
    _, url = serve(limit)
    assert http.get(f"{url}/background").text == "ok"
    wait_until(lambda: held(limit) == 0, "released")
    assert app.running == 1
    assert http.get(url).text == "ok"
    app.go_on.set()
    wait_until(lambda: "/background" in app.finished, "not cancelled by its client's leaving")


class LeavingClient:
    """What a server has of a client that leaves, where sending takes a while.

    Args:
        leaves_at: the type of the message during whose sending it leaves; "" at once.
    """

    def __init__(self, leaves_at: str) -> None:
        self.left = asyncio.Event()
        self.leaves_at = leaves_at
        if not leaves_at:
            self.left.set()
        self.sent: list[str] = []

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message) -> None:
        self.sent.append(message["type"])
        if message["type"] == self.leaves_at:
            self.left.set()
        for _ in range(10):
            await asyncio.sleep(0)


HTTP = {"type": "http", "path": "/", "method": "GET", "headers": []}


@pytest.mark.parametrize("wait", [0, 60])
async def test_leaving_during_the_last_chunk_does_not_stop_what_comes_behind_it(
    wait, monkeypatch
) -> None:
    monkeypatch.setattr(_asgi_exchange, "_SHORT_RESPONSE", 0)
    limit = MemorySemaphore(1)
    done = []

    async def work(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.01)  # so that the client is watched
        await send({"type": "http.response.body", "body": b"ok"})
        assert await receive() == {"type": "http.disconnect"}
        await asyncio.sleep(0.01)
        done.append(held(limit))

    client = LeavingClient("http.response.body")
    await LimitMiddleware(work, limit, wait=wait)(HTTP, client.receive, client.send)
    assert done == [0]


@pytest.mark.parametrize("wait", [0, 60])
async def test_a_client_that_left_before_a_short_response_does_not_stop_it(
    wait, monkeypatch
) -> None:
    monkeypatch.setattr(_asgi_exchange, "_SHORT_RESPONSE", 60)
    limit = MemorySemaphore(1)
    committed = []

    async def work(scope, receive, send) -> None:
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await send({"type": "http.response.body", "body": b"k"})
        committed.append(held(limit))

    client = LeavingClient("")
    await LimitMiddleware(work, limit, wait=wait)(HTTP, client.receive, client.send)
    assert committed == [0]


async def test_several_tasks_of_the_app_may_receive_at_once() -> None:
    limit = MemorySemaphore(1)
    holder = await limit.acquire()
    received: asyncio.Queue[dict] = asyncio.Queue()
    got = []

    async def work(scope, receive, send) -> None:
        async def listen() -> None:
            got.append((await receive()).get("body"))

        tasks = [asyncio.create_task(listen()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        for body in (b"a", b"b"):
            received.put_nowait({"type": "http.request", "body": body, "more_body": True})
        await asyncio.gather(*tasks, return_exceptions=True)

    client = LeavingClient("never")
    # It waits first, so that the client is watched and the app's tasks wait for what arrives.
    call = asyncio.create_task(
        LimitMiddleware(work, limit, wait=60)(HTTP, received.get, client.send)
    )
    while not waiting(limit):
        await asyncio.sleep(0)
    await limit.release(holder)
    await call
    assert sorted(got) == [b"a", b"b"]


def test_a_failing_app_frees_its_slot(app, serve) -> None:
    limit = MemorySemaphore(1)
    _, url = serve(limit)
    assert http.get(f"{url}/failing").status_code == 500
    wait_until(lambda: held(limit) == 0, "released")


@pytest.mark.parametrize(
    ("error", "value"), [(None, 10), (TimeoutError, 7), (ValueError, 10), (ConnectionError, 7)]
)
async def test_what_the_app_raises_counts_for_an_adaptive_limit(
    error: type[Exception] | None, value: int
) -> None:
    limit = MemorySemaphore(Adaptive(10, 2, 20, algorithm=Errors()))

    async def app(scope, receive, send) -> None:
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message) -> None: ...

    serving = LimitMiddleware(app, limit)({"type": "http", "path": "/"}, receive, send)
    await asyncio.gather(serving, return_exceptions=True)
    assert limit.value == value
    assert held(limit) == 0


def test_observing_lets_everybody_in_and_counts(app, serve) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit, observe=True)
    with Client(middleware.port).send("/slow"):
        wait_until(lambda: app.running, "the holder")
        assert http.get(url).text == "ok"
        assert (middleware.would_refuse, middleware.refused) == (1, 0)
        assert held(limit) == 1
        app.go_on.set()


def test_draining_refuses_those_who_wait_and_lets_holders_finish(app, serve) -> None:
    limit = MemorySemaphore(1)
    middleware, url = serve(limit, wait=60)
    with Client(middleware.port).send("/slow") as holder:
        wait_until(lambda: app.running, "the holder")
        with Client(middleware.port).send("/quick", "Connection: close") as waiter:
            wait_until(lambda: waiting(limit) == 1, "the line")
            middleware.drain()
            answer = waiter.read_all()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert http.get(url).status_code == 503  # nobody waits any more
        app.go_on.set()
        holder.read_until(b"ok")


def test_a_websocket_holds_a_slot_and_others_are_refused(app, serve) -> None:
    limit = MemorySemaphore(1)
    _, url = serve(limit)
    address = url.replace("http", "ws")
    with websockets.sync.client.connect(address) as first:
        first.send("hello")
        assert first.recv() == "HELLO"
        assert held(limit) == 1
        with pytest.raises(InvalidStatus) as refused, websockets.sync.client.connect(address):
            pass
        response = refused.value.response
        assert response.status_code == 503
        assert response.headers["RateLimit"] == '"limit";r=0'
        assert json.loads(response.body)["status"] == 503
    wait_until(lambda: held(limit) == 0, "released")


async def test_a_websocket_is_closed_before_accept_where_the_server_knows_no_more(app) -> None:
    limit = MemorySemaphore(1)
    await limit.acquire()
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": []}
    await LimitMiddleware(app, limit)(scope, receive, send)
    assert [(each["type"], each["code"]) for each in sent] == [("websocket.close", 1013)]


def test_a_backend_that_is_away_is_503_without_its_url(serve) -> None:
    limit = semaphore("away", 1, url="redis://user:secret@127.0.0.1:1/0")
    _, url = serve(limit)
    refused = http.get(url, timeout=60)
    assert refused.status_code == 503
    assert "127.0.0.1" not in refused.text
    assert "secret" not in refused.text
    assert http.get(f"{url}/healthz").text == "ok"


def test_a_closed_limit_is_503(serve) -> None:
    limit = MemorySemaphore(1)
    _, url = serve(limit)
    limit.close_sync()
    assert http.get(url).status_code == 503


@pytest.mark.parametrize(
    ("limit", "options", "error"),
    [
        (5, {}, TypeError),
        (Tiers(Tier("tenant", 1, keyed=True)), {}, TypeError),
        (MemorySemaphore(1), {"key": lambda scope: {}}, TypeError),
        (MemorySemaphore(1), {"wait": -1}, ValueError),
        (MemorySemaphore(1), {"exempt": "/healthz"}, TypeError),
        (MemorySemaphore(1), {"on_disconnect": "ignore"}, ValueError),
        (MemorySemaphore(1), {"observe": "yes"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused(app, limit, options, error) -> None:
    with pytest.raises(error):
        LimitMiddleware(app, limit, **options)
