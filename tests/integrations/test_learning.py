"""Clients that slow down when a server says so, against a real server that does."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import parse_qsl

import aiohttp
import httpx
import httpx2
import pytest
from tests.integrations._servers import uvicorn_thread

from slotwise import (
    Adaptive,
    Errors,
    MemorySemaphore,
    RedisSemaphore,
    Tier,
    Tiers,
)
from slotwise.integrations._learning import read_retry_after
from slotwise.integrations.aiohttp import limit_middleware
from slotwise.integrations.httpx import LimitedTransport
from slotwise.redis import RedisConfig

HOST = "127.0.0.1"


async def app(scope, receive, send) -> None:
    """Answers with the status of its path, and the header fields of its query."""
    fields = [(k.encode(), v.encode()) for k, v in parse_qsl(scope["query_string"].decode())]
    status = int(scope["path"].strip("/") or 200)
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": b"answer"})


@pytest.fixture(scope="module")
def url():
    with uvicorn_thread(app, lifespan="off", date_header=False) as port:
        yield f"http://{HOST}:{port}"


async def _by_sync_client(package, limit, url, params, **options) -> tuple[int, bytes]:
    def get():
        transport = LimitedTransport(
            package.HTTPTransport(verify=False), limit, learn=True, **options
        )
        with package.Client(transport=transport, verify=False) as client:
            response = client.get(url, params=params)
            return response.status_code, response.content

    return await asyncio.to_thread(get)


async def _by_async_client(package, limit, url, params, **options) -> tuple[int, bytes]:
    transport = LimitedTransport(
        package.AsyncHTTPTransport(verify=False), limit, learn=True, **options
    )
    async with package.AsyncClient(transport=transport, verify=False) as client:
        response = await client.get(url, params=params)
        return response.status_code, response.content


async def _by_aiohttp(_package, limit, url, params, **options) -> tuple[int, bytes]:
    middleware = limit_middleware(limit, learn=True, **options)
    async with (
        aiohttp.ClientSession(middlewares=[middleware]) as session,
        session.get(url, params=params) as response,
    ):
        return response.status, await response.read()


CLIENTS = [
    pytest.param((_by_sync_client, httpx), id="httpx-sync"),
    pytest.param((_by_async_client, httpx), id="httpx"),
    pytest.param((_by_sync_client, httpx2), id="httpx2-sync"),
    pytest.param((_by_async_client, httpx2), id="httpx2"),
    pytest.param((_by_aiohttp, None), id="aiohttp"),
]


@pytest.fixture(params=CLIENTS)
def get(request, url):
    """Makes a request with a limit, and returns the status; the user always gets the response."""
    how, package = request.param

    async def get(limit, status=200, /, options=None, **fields) -> int:
        params = {name.replace("_", "-"): value for name, value in fields.items()}
        answer = await how(package, limit, f"{url}/{status}", params, **(options or {}))
        assert answer == (status, b"answer")
        return answer[0]

    return get


def paused_for(limit) -> float:
    return limit.stats_sync().paused_for


# --------------------------------------------------------------------- pausing


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_with_a_time_pauses_the_limit(get, status) -> None:
    limit = MemorySemaphore(2)
    await get(limit, status, retry_after="100")
    assert 90 < paused_for(limit) <= 100
    assert limit.stats_sync().acquired_slots == 0
    assert limit.try_acquire_sync() is None


async def test_the_time_may_be_a_date_and_no_pause_is_longer_than_allowed(get) -> None:
    limit = MemorySemaphore(2)
    later = datetime.now(UTC) + timedelta(seconds=60)
    await get(limit, 429, retry_after=format_datetime(later, usegmt=True))
    assert 40 < paused_for(limit) <= 61
    limit = MemorySemaphore(2)
    await get(limit, 429, {"max_pause": 5}, retry_after="1000")
    assert 0 < paused_for(limit) <= 5
    for long in ("999999999999", "9" * 400):
        limit = MemorySemaphore(2)
        await get(limit, 429, {"max_pause": 5}, retry_after=long)
        assert 0 < paused_for(limit) <= 5
    limit = MemorySemaphore(2)
    await get(limit, 429, {"max_pause": None}, retry_after="9999999999")  # centuries
    assert paused_for(limit) > 900_000_000


async def test_other_responses_and_nonsense_pause_nothing(get) -> None:
    limit = MemorySemaphore(2)
    await get(limit, 200, retry_after="100")
    await get(limit, 500, retry_after="100")
    await get(limit, 429)
    for nonsense in ("0", "-5", "soon", "1.5", "Thu, 99 Foo 2026 99:99:99 GMT", "9" * 30 + "x"):
        await get(limit, 429, retry_after=nonsense)
    assert paused_for(limit) == 0
    assert limit.try_acquire_sync() is not None


async def test_of_a_path_only_the_host_is_paused(get) -> None:
    tiers = Tiers(Tier("host", 5, keyed=True), Tier("all", 9))
    await get(tiers, 429, {"key": lambda request: {"host": request.url.host}}, retry_after="100")
    assert tiers.at(host=HOST).stats_sync().paused_for > 90
    assert tiers.try_acquire_sync(host="another") is not None


async def test_an_adaptive_limit_is_told_instead(get) -> None:
    limit = MemorySemaphore(Adaptive(start=20, min=1, max=40, algorithm=Errors()))
    await get(limit, 429, retry_after="100")
    assert paused_for(limit) == 0
    [change] = limit.changes_sync()
    assert (change.old, change.new) == (20, limit.stats_sync().max_slots)
    assert 3 < change.new < 20
    limit = MemorySemaphore(Adaptive(start=20, min=1, max=40, algorithm=Errors()))
    await get(limit, 503)
    assert limit.stats_sync().max_slots < 20
    limit = MemorySemaphore(Adaptive(start=20, min=1, max=40, algorithm=Errors()))
    await get(limit, 200, retry_after="100")
    assert limit.stats_sync().max_slots >= 20


def test_a_date_counts_by_the_clock_of_the_server_that_sent_it() -> None:
    sent = datetime(2020, 1, 1, tzinfo=UTC)
    fields = {
        "retry-after": [format_datetime(sent + timedelta(seconds=7), usegmt=True)],
        "date": [format_datetime(sent, usegmt=True)],
    }
    assert read_retry_after(lambda name: fields.get(name, [])) == 7
    fields["date"] = ["nonsense"]
    assert read_retry_after(lambda name: fields.get(name, [])) is None  # long ago
    twice = {"retry-after": ["1", "2"]}
    assert read_retry_after(lambda name: twice.get(name, [])) is None


# -------------------------------------------------------------------- troubles


async def test_a_server_that_is_away_spoils_no_response_and_is_logged_once(get, caplog) -> None:
    config = RedisConfig("redis://127.0.0.1:1")
    limit = RedisSemaphore(name="away", value=2, config=config, on_unreachable="open")
    with caplog.at_level(logging.INFO, logger="slotwise.integrations"):
        await get(limit, 429, retry_after="100")
    told = [each for each in caplog.records if each.name == "slotwise.integrations"]
    assert len(told) <= 1  # it may still be trying, behind
    assert all(each.levelno == logging.WARNING for each in told)
    assert all("pausing 'away' for 100 s failed" in each.getMessage() for each in told)


class Slow(MemorySemaphore):
    """One whose server doesn't answer."""

    __slots__ = ("asked", "given_up")
    _does_io = True

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.asked, self.given_up = threading.Event(), threading.Event()

    async def pause(self, seconds: float) -> None:
        self.asked.set()
        while not self.given_up.is_set():
            await asyncio.sleep(0.001)

    def pause_sync(self, seconds: float) -> None:
        self.asked.set()
        self.given_up.wait(30)


@pytest.mark.soak
async def test_a_response_does_not_wait_for_long_for_a_server_that_keeps_the_limit(get) -> None:
    limit = Slow(2)
    async with asyncio.timeout(20):
        await get(limit, 429, retry_after="100")
    assert limit.asked.is_set()
    limit.given_up.set()
    assert limit.stats_sync().acquired_slots == 0


@pytest.mark.parametrize("how", [_by_async_client, _by_aiohttp])
async def test_a_caller_that_is_cancelled_while_it_learns_leaves_no_slot_behind(url, how) -> None:
    limit = Slow(1)
    asking = asyncio.create_task(how(httpx, limit, f"{url}/429", {"retry-after": "100"}))
    async with asyncio.timeout(30):
        while not limit.asked.is_set():
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait([asking])
    assert asking.cancelled()
    assert limit.stats_sync().acquired_slots == 0
    limit.given_up.set()
