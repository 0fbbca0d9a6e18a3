"""httpx, httpx2 and aiohttp, with limits on what they have in flight, against a real server."""

from __future__ import annotations

import asyncio
import threading

import aiohttp
import httpx
import httpx2
import pytest
from tests.integrations._servers import uvicorn_thread

from slotwise import (
    AcquireTimeout,
    Adaptive,
    Errors,
    MemorySemaphore,
    Rate,
    RateLimit,
    RedisSemaphore,
    Tier,
    Tiers,
)
from slotwise.integrations.aiohttp import limit_middleware
from slotwise.integrations.httpx import LimitedTransport
from slotwise.redis import RedisConfig

go_on = threading.Event()


async def app(scope, receive, send) -> None:
    """``/stream`` waits for the test before its last chunk; ``/redirect`` leads to ``/quick``."""
    if scope["type"] == "lifespan":
        return
    redirects = scope["path"] == "/redirect"
    fields = [(b"location", b"/quick")] if redirects else []
    await send(
        {"type": "http.response.start", "status": 302 if redirects else 200, "headers": fields}
    )
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        while not go_on.is_set():
            await asyncio.sleep(0.005)
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def url():
    with uvicorn_thread(app, lifespan="off") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def streams_end():
    go_on.clear()
    yield
    go_on.set()


def held(limit) -> int:
    return limit.stats_sync().acquired_slots


@pytest.mark.parametrize("package", [httpx, httpx2])
def test_a_sync_client_holds_a_slot_until_the_response_is_read_or_closed(url, package) -> None:
    limit = MemorySemaphore(1, max_acquire_time=0.01)
    transport = LimitedTransport(package.HTTPTransport(), limit)
    with package.Client(transport=transport, follow_redirects=True) as client:
        assert client.get(f"{url}/redirect").text == "ok"
        assert held(limit) == 0
        with client.stream("GET", f"{url}/stream") as response:
            lines = response.iter_lines()  # httpx2 closes the response with its iterator
            assert next(lines) == "first"
            assert held(limit) == 1
            with pytest.raises(AcquireTimeout):
                client.get(url)
            response.close()
            assert held(limit) == 0
        with pytest.raises(package.ConnectError):
            client.get("http://127.0.0.1:1")
        assert held(limit) == 0
        assert client.get(url).text == "ok"


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("package", [httpx, httpx2])
def test_a_response_that_is_complete_at_once_holds_no_slot(package, learn) -> None:
    limit = MemorySemaphore(1, max_acquire_time=0.01)
    # As of a cache, or in the tests of an application.
    complete = package.MockTransport(lambda _: package.Response(200, text="ok"))
    transport = LimitedTransport(complete, limit, learn=learn)
    kept = []  # what is not collected doesn't release its slot either
    with package.Client(transport=transport) as client:
        kept += [client.get("http://service") for _ in range(2)]

    async def get_more() -> None:
        async with package.AsyncClient(transport=transport) as client:
            kept.extend([await client.get("http://service") for _ in range(2)])
            async with client.stream("GET", "http://service") as response:
                kept.append(response)
                assert await response.aread() == b"ok"

    asyncio.run(get_more())
    assert [each.text for each in kept] == ["ok"] * 5
    assert held(limit) == 0


@pytest.mark.parametrize("package", [httpx, httpx2])
async def test_an_async_client_holds_a_slot_until_the_response_is_read_or_closed(
    url, package
) -> None:
    limit = MemorySemaphore(1)
    transport = LimitedTransport(package.AsyncHTTPTransport(), limit)
    async with package.AsyncClient(transport=transport, follow_redirects=True) as client:
        assert (await client.get(f"{url}/redirect")).text == "ok"
        async with client.stream("GET", f"{url}/stream") as response:
            assert held(limit) == 1
            waiting = asyncio.create_task(client.get(url))
            while not limit.stats_sync().waiting:
                await asyncio.sleep(0.001)
            go_on.set()
            assert await response.aread() == b"first\nok"
        assert (await waiting).text == "ok"
        assert held(limit) == 0
        with pytest.raises(package.ConnectError):
            await client.get("http://127.0.0.1:1")
        assert held(limit) == 0
        request = client.build_request("GET", f"{url}/stream")
        response = await client.send(request, stream=True)
        assert held(limit) == 1
        await response.aclose()
        assert held(limit) == 0


async def test_a_session_of_aiohttp_holds_a_slot_until_the_response_is_read_or_closed(url) -> None:
    limit = MemorySemaphore(1)
    async with aiohttp.ClientSession(middlewares=[limit_middleware(limit)]) as session:
        async with session.get(f"{url}/redirect") as response:
            assert await response.text() == "ok"
        assert held(limit) == 0
        async with session.get(f"{url}/stream") as response:
            assert held(limit) == 1
            waiting = asyncio.create_task(session.get(url))
            while not limit.stats_sync().waiting:
                await asyncio.sleep(0.001)
            go_on.set()
            assert await response.read() == b"first\nok"
        async with await waiting as response:
            assert await response.text() == "ok"
        assert held(limit) == 0
        go_on.clear()
        async with session.get(f"{url}/stream") as response:
            response.close()
            assert held(limit) == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get("http://127.0.0.1:1")
        assert held(limit) == 0


@pytest.fixture(params=["httpx", "httpx2", "aiohttp"])
def send(request, url):
    """Returns a coroutine that reads what the server streams, with a limit."""

    async def by_aiohttp(limit, path) -> None:
        async with (
            aiohttp.ClientSession(middlewares=[limit_middleware(limit)]) as session,
            session.get(url + path) as response,
        ):
            await response.read()

    async def by_httpx(limit, path) -> None:
        package = {"httpx": httpx, "httpx2": httpx2}[request.param]
        transport = LimitedTransport(package.AsyncHTTPTransport(verify=False), limit)
        async with package.AsyncClient(transport=transport, verify=False, timeout=60) as client:
            await client.get(url + path)

    return by_aiohttp if request.param == "aiohttp" else by_httpx


async def _until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_caller_that_is_cancelled_leaves_no_slot_behind_wherever_it_was(send) -> None:
    limit = MemorySemaphore(1)
    reading = asyncio.create_task(send(limit, "/stream"))
    await _until(lambda: held(limit) == 1)
    in_line = asyncio.create_task(send(limit, "/quick"))
    await _until(lambda: limit.stats_sync().waiting == 1)
    in_line.cancel()
    await asyncio.wait([in_line])
    assert (held(limit), limit.stats_sync().waiting) == (1, 0)
    reading.cancel()  # before its headers, or in the middle of its body
    await asyncio.wait([reading])
    await _until(lambda: held(limit) == 0)
    async with asyncio.timeout(30):
        await send(limit, "/quick")
    assert held(limit) == 0


async def test_a_slot_on_a_server_is_released_too(url, server) -> None:
    limit = RedisSemaphore(name="clients", value=1, config=RedisConfig(server.url))
    async with aiohttp.ClientSession(middlewares=[limit_middleware(limit)]) as session:
        for _ in range(3):
            async with session.get(url) as response:
                assert await response.text() == "ok"
    async with httpx.AsyncClient(
        transport=LimitedTransport(httpx.AsyncHTTPTransport(), limit)
    ) as client:
        for _ in range(3):
            assert (await client.get(url)).text == "ok"
    while (await limit.stats()).acquired_slots:
        await asyncio.sleep(0.01)


def test_keys_and_costs_are_functions_of_the_request(url) -> None:
    tiers = Tiers(
        Tier("host", 2, keyed=True),
        Tier("bytes", rate=Rate(1000, per=1000, burst=1000), keyed="host"),
    )
    transport = LimitedTransport(
        httpx.HTTPTransport(),
        tiers,
        key=lambda request: {"host": request.url.host},
        cost=lambda request: {"bytes": len(request.content)},
    )
    rate = RateLimit(None, Rate(10, per=1000, burst=10))
    with httpx.Client(transport=transport) as client:
        client.post(url, content=b"x" * 400)
    assert round(tiers.stats_sync()["bytes"].keys["127.0.0.1"].level) == 600
    with httpx.Client(transport=LimitedTransport(httpx.HTTPTransport(), rate, cost=4)) as client:
        client.get(url)
    assert held(rate) == 4
    with httpx.Client(
        transport=LimitedTransport(httpx.HTTPTransport(), lambda request: None)
    ) as client:
        assert client.get(url).text == "ok"


@pytest.mark.parametrize(
    "make", [limit_middleware, lambda *a, **o: LimitedTransport(None, *a, **o)]
)
def test_wrong_arguments_are_refused(make) -> None:
    with pytest.raises(TypeError):
        make(5)
    with pytest.raises(ValueError, match="cost"):
        make(MemorySemaphore(1), cost=0)
    with pytest.raises(TypeError, match="learn"):
        make(MemorySemaphore(1), learn=1)
    for wrong in (0, -1, float("inf"), "1"):
        with pytest.raises((TypeError, ValueError), match="max_pause"):
            make(MemorySemaphore(1), learn=True, max_pause=wrong)


class Failing:
    """A transport that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def handle_request(self, request):
        raise self._error

    async def handle_async_request(self, request):
        raise self._error


@pytest.mark.parametrize("package", [httpx, httpx2])
async def test_timeouts_and_lost_connections_are_drops_for_an_adaptive_limit(package) -> None:
    only_reads = (package.ReadTimeout,)
    for error, drop_on, value in (
        (package.ReadTimeout("slow"), (TimeoutError,), 7),
        (package.ConnectError("nobody is there"), (ConnectionError,), 7),
        (package.ConnectError("nobody is there"), (TimeoutError,), 10),
        (package.ReadTimeout("slow"), only_reads, 7),
        (package.WriteTimeout("slow"), only_reads, 10),
        (package.UnsupportedProtocol("what?"), (TimeoutError, ConnectionError), 10),
        (ValueError(), (TimeoutError, ConnectionError), 10),
    ):
        rules = Adaptive(10, 2, 20, algorithm=Errors(), drop_on=drop_on)
        for is_async in (False, True):
            limit = MemorySemaphore(rules)
            transport = LimitedTransport(Failing(error), limit)
            send = transport.handle_async_request if is_async else transport.handle_request
            with pytest.raises(type(error)):
                await (send(None) if is_async else asyncio.to_thread(send, None))
            assert (limit.value, held(limit)) == (value, 0)


async def test_aiohttp_tells_an_adaptive_limit_of_lost_connections() -> None:
    limit = MemorySemaphore(Adaptive(10, 2, 20, algorithm=Errors()))
    async with aiohttp.ClientSession(middlewares=[limit_middleware(limit)]) as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get("http://127.0.0.1:1/")
    assert (limit.value, held(limit)) == (7, 0)
