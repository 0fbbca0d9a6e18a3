"""Pipelines with a semaphore whose verbs need I/O: asked side by side, never in the loop's way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests import _fresh_processes
from tests.redis._server import SELDOM_BUSY, Server, until
from tests.redis.faults._proxy import Freezes

from slotwise import ProcessSemaphore, Semaphore
from slotwise.pipeline import bounded_map, bounded_map_sync
from slotwise.redis import RedisConfig, RedisSemaphore

HANGS = 30
# Whoever waited for the server would be seen: it would take this long.
PATIENT = {"cleanup_timeout": 60, "attempts": 1000, "connect_timeout": 60, "reply_timeout": 60}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), *SELDOM_BUSY) as server:
        yield server


def on_redis(url: str, name: str, value: int) -> RedisSemaphore:
    config = RedisConfig(url, **PATIENT)
    return RedisSemaphore(value, name=name, heartbeat_max_interval=60, config=config)


@contextmanager
def no_sync_verb_in_a_loop(monkeypatch: pytest.MonkeyPatch, semaphore: Semaphore) -> Iterator[None]:
    """Fail if a verb that may block is called in the thread of a running event loop."""
    called = []

    def watched(name: str) -> Any:
        really = getattr(type(semaphore), name)

        def verb(self: Semaphore, *args: Any, **more: Any) -> Any:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                called.append(name)
            return really(self, *args, **more)

        return verb

    for name in dir(type(semaphore)):
        if name.endswith("_sync"):
            monkeypatch.setattr(type(semaphore), name, watched(name))
    yield
    assert called == []


class Gate:
    """Work that ends when it is let go, in tasks and threads alike."""

    def __init__(self, way: str) -> None:
        self._go = threading.Event()
        self._lock = threading.Lock()
        self.running = 0
        self.work = self._in_a_task if way == "tasks" else self._in_a_thread

    async def _in_a_task(self, item: int) -> int:
        self._begin()
        while not self._go.is_set():
            await asyncio.sleep(0.001)
        return item

    def _in_a_thread(self, item: int) -> int:
        self._begin()
        assert self._go.wait(HANGS)
        return item

    def _begin(self) -> None:
        with self._lock:
            self.running += 1

    def open(self) -> None:
        self._go.set()


def start(way: str, gate: Gate, items: int, semaphore: Semaphore) -> asyncio.Future[list[int]]:
    async def collect() -> list[int]:
        return [r async for r in bounded_map(gate.work, range(items), semaphore=semaphore)]

    if way != "threads":
        return asyncio.create_task(collect())
    run = bounded_map_sync(gate.work, range(items), semaphore=semaphore)
    return asyncio.ensure_future(asyncio.to_thread(list, run))


@pytest.mark.parametrize("way", ["tasks", "threads of a loop", "threads"])
async def test_slots_are_asked_for_and_given_back_side_by_side(server: Server, way: str) -> None:
    """No reply comes through, and yet the server sees all requests, and all releases."""
    name = f"side by side in {way}"
    directly = on_redis(server.url, name, 4)

    async def held() -> int:
        return (await directly.stats()).acquired_slots

    with Freezes(server.port) as proxy:
        semaphore, gate = on_redis(proxy.url, name, 4), Gate(way)
        connecting = Gate(way)
        connecting.open()
        await start(way, connecting, 1, semaphore)
        if way != "threads":  # those have a loop of their own, which connects anew
            proxy.freeze_replies()
        running = start(way, gate, 4, semaphore)
        try:
            await until(lambda: _is(held, 4), "four requests without a reply")
            proxy.thaw()
            await until(lambda: gate.running == 4, "four that run")
            proxy.freeze_replies()
            gate.open()
            await until(lambda: _is(held, 0), "four releases without a reply")
        finally:
            gate.open()
            proxy.thaw()
        assert sorted(await asyncio.wait_for(running, HANGS)) == [0, 1, 2, 3]


async def _is(count: Any, wanted: int) -> bool:
    return bool(await count() == wanted)


@pytest.mark.parametrize("more", [{}, {"group_key": int}], ids=["plain", "groups"])
async def test_a_stopped_server_never_blocks_the_loop(tmp_path: Path, monkeypatch, more) -> None:
    gate = Gate("tasks")
    with Server(tmp_path) as server:
        semaphore = on_redis(server.url, "s", 2)
        with no_sync_verb_in_a_loop(monkeypatch, semaphore):
            results = bounded_map(gate.work, range(4), semaphore=semaphore, **more)
            async with results:
                await until(lambda: results.report.in_flight == 2, "two that run")
                server.pause()
                started = time.monotonic()
                gate.open()
                # Neither the results nor the loop wait for releases that nobody answers.
                assert sorted([await anext(results), await anext(results)]) == [0, 1]
                for _ in range(20):
                    await asyncio.sleep(0.01)
                assert time.monotonic() - started < HANGS
                server.resume()
                assert sorted([await anext(results), await anext(results)]) == [2, 3]
        await until(lambda: _is(lambda: _held(semaphore), 0), "nothing held")


async def _held(semaphore: Semaphore) -> int:
    return (await semaphore.stats()).acquired_slots


async def test_a_stopped_server_does_not_hold_up_closing_a_run(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        semaphore = on_redis(server.url, "s", 2)
        gate = Gate("tasks")
        results = bounded_map(gate.work, range(8), semaphore=semaphore)
        await results.__aenter__()
        await until(lambda: results.report.in_flight == 2, "two that run")
        server.pause()
        await asyncio.wait_for(results.aclose(), HANGS)
        assert results.report.cancelled == 2
        server.resume()
        await until(lambda: _is(lambda: _held(semaphore), 0), "nothing held")


async def test_a_busy_file_never_blocks_the_loop(tmp_path: Path, monkeypatch) -> None:
    semaphore = ProcessSemaphore(2, name="s", directory=tmp_path / "slots")
    gate = Gate("tasks")
    with no_sync_verb_in_a_loop(monkeypatch, semaphore):
        results = bounded_map(gate.work, range(4), semaphore=semaphore)
        async with results:
            await until(lambda: results.report.in_flight == 2, "two that run")
            [file] = [path for path in (tmp_path / "slots").rglob("*") if path.is_file()]
            with locked(file):
                gate.open()
                assert sorted([await anext(results), await anext(results)]) == [0, 1]
                for _ in range(20):
                    await asyncio.sleep(0.001)
            assert sorted([await anext(results), await anext(results)]) == [2, 3]
    assert await _held(semaphore) == 0


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Somebody else has the lock of a semaphore's file."""
    script = """
        import fcntl, sys
        with open(sys.argv[1], "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
            print("locked", flush=True)
            sys.stdin.read()
    """
    with _fresh_processes.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
        process.communicate(timeout=HANGS)
