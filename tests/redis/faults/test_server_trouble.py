"""A server that stops, forgets, freezes, or whose clock jumps."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.redis._client import Worker
from tests.redis._server import BUSY, Server, until
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise import Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def forgetful_server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "redis") as server:
        yield server


class Counted:
    """An independent count of who is inside."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.order: list[int] = []

    async def work(self, semaphore: RedisSemaphore, n: int) -> None:
        async with semaphore.cm() as acquired:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.order.append(n)
            await asyncio.sleep(0.001)
            if not acquired.lost.is_set():
                self.inside -= 1


async def line_up(semaphore: RedisSemaphore, counted: Counted, count: int) -> list[object]:
    tasks: list[object] = []
    for n in range(count):
        tasks.append(asyncio.create_task(counted.work(semaphore, n)))
        await in_line(semaphore, n + 1)
    return tasks


async def test_a_restart_with_its_data_keeps_holders_and_the_line(own_server: Server) -> None:
    semaphore = RedisSemaphore(
        name="s", value=2, heartbeat_max_interval=10, config=RedisConfig(own_server.url)
    )
    held = [await semaphore.acquire(), await semaphore.acquire()]
    counted = Counted()
    tasks = await line_up(semaphore, counted, 50)
    await asyncio.to_thread(own_server.stop)
    await asyncio.to_thread(own_server.start)
    for acquired in held:
        assert await semaphore.release(acquired) is True
    await asyncio.wait_for(asyncio.gather(*tasks), 30)  # type: ignore[call-overload]
    assert counted.most <= 2
    assert counted.order == list(range(50))
    assert not any(acquired.lost.is_set() for acquired in held)
    with own_server.client(decode_responses=True) as client:
        assert_nothing_left(client)


async def test_a_restart_without_its_data_tells_holders_and_lines_up_again(
    forgetful_server: Server,
) -> None:
    server = forgetful_server
    semaphore = RedisSemaphore(
        name="s", value=1, heartbeat_max_interval=10, config=RedisConfig(server.url)
    )
    held = await semaphore.acquire()
    counted = Counted()
    tasks = await line_up(semaphore, counted, 50)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(held.lost, 20)
    await asyncio.wait_for(asyncio.gather(*tasks), 30)  # type: ignore[call-overload]
    assert counted.most == 1
    assert counted.order == list(range(50))
    assert await semaphore.release(held) is False
    with server.client(decode_responses=True) as client:
        assert_nothing_left(client)


@pytest.mark.soak
async def test_a_server_frozen_for_three_seconds_loses_nobody(forgetful_server: Server) -> None:
    server = forgetful_server
    semaphore = RedisSemaphore(
        name="s", value=2, heartbeat_max_interval=10, config=RedisConfig(server.url)
    )
    held = await semaphore.acquire()
    counted = Counted()
    stop = asyncio.Event()

    async def keep_busy() -> None:
        while not stop.is_set():
            await counted.work(semaphore, 0)

    busy = [asyncio.create_task(keep_busy()) for _ in range(5)]
    server.pause()
    await asyncio.sleep(3)
    server.resume()
    before = len(counted.order)
    await until(lambda: len(counted.order) > before + 20, "work goes on")
    stop.set()
    await asyncio.wait_for(asyncio.gather(*busy), 20)
    assert counted.most == 1
    assert not held.lost.is_set()
    assert await semaphore.release(held) is True
    with server.client(decode_responses=True) as client:
        assert_nothing_left(client)


# Put between redis-server and the C library: the wall clock, plus what a file says.
SHIFTED_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_SHIFT_FILE"), O_RDONLY);
    if (file < 0) return 0;
    if (read(file, text, 31) < 0) text[0] = 0;
    close(file);
    return atol(text);
}
int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(tv, tz);
    tv->tv_sec += shift();
    return result;
}
int clock_gettime(clockid_t clock, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, ts);
    if (clock == CLOCK_REALTIME) ts->tv_sec += shift();
    return result;
}
"""


def build_shifted_clock(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler, to put another clock under redis-server")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIFTED_CLOCK)
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs a C compiler that works, to put another clock under redis-server")
    return library


def with_shifted_clock(folder: Path) -> tuple[Server, Path]:
    """Return a server, and the file with the seconds by which its clock is off."""
    steps = folder / "shift"
    steps.write_text("0")
    server = Server(folder / "redis")
    server.environment = {
        "LD_PRELOAD": str(build_shifted_clock(folder)),
        "CLOCK_SHIFT_FILE": str(steps),
    }
    return server, steps


@pytest.mark.soak
async def test_the_servers_clock_may_step_back_and_forth(tmp_path: Path) -> None:
    server, steps = with_shifted_clock(tmp_path)
    with server, server.client() as client:
        semaphore = RedisSemaphore(
            name="s", value=1, heartbeat_max_interval=5, config=RedisConfig(server.url)
        )
        counted = Counted()
        held = await semaphore.acquire()
        tasks = await line_up(semaphore, counted, 3)
        tokens = [held.fencing_token or 0]
        for step in (-3600, -3598, -7200, -7199):
            before = client.time()[0]
            steps.write_text(str(step))
            await until(lambda: client.time()[0] != before, "another time")  # noqa: B023
            n = len(tasks)
            tasks.append(asyncio.create_task(counted.work(semaphore, n)))
            await in_line(semaphore, n + 1)
        await semaphore.release(held)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)  # type: ignore[call-overload]
        assert counted.order == list(range(7))
        assert counted.most == 1
        async with semaphore.cm() as last:
            tokens.append(last.fencing_token or 0)
        assert tokens == sorted(set(tokens))


@pytest.mark.soak
async def test_a_holder_that_died_before_the_clock_stepped_back_is_freed_all_the_same(
    tmp_path: Path,
) -> None:
    server, steps = with_shifted_clock(tmp_path)
    with server:
        options = {"name": "s", "value": 1, "heartbeat_max_interval": 1}
        with Worker(**options, config={"url": server.url}) as worker:
            worker.tell("acquire")
            worker.hears()
            worker.kill()
        steps.write_text("-3600")
        semaphore = RedisSemaphore(
            name="s", value=1, heartbeat_max_interval=1, config=RedisConfig(server.url)
        )
        started = time.monotonic()
        await semaphore.release(await asyncio.wait_for(semaphore.acquire(), 20))
        assert time.monotonic() - started < 4 + BUSY


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["semaphore", "tiers", "one key of tiers"])
async def test_a_pause_ends_though_the_clock_is_set_back(tmp_path: Path, kind: str) -> None:
    """Else a pause of half a second would last for the hour by which it was set back."""
    server, steps = with_shifted_clock(tmp_path)
    with server, server.client() as client:
        config, limit = RedisConfig(server.url), None
        if kind == "semaphore":
            limit = RedisSemaphore(1, name="s", config=config)
        else:
            tiers = Tiers(Tier("host", 1, keyed=True), Tier("all", 2), name="t", url=config)
            limit = tiers if kind == "tiers" else tiers.at(host="a")
        keys = {"host": "a"} if kind == "tiers" else {}
        await limit.pause(0.5)
        waiting = asyncio.create_task(limit.acquire(**keys))
        before = client.time()[0]
        steps.write_text("-3600")
        await until(lambda: client.time()[0] < before - 1000, "another time")
        acquired = await asyncio.wait_for(waiting, 30)
        assert acquired.waited > 0.2
        await limit.release(acquired)
        async with asyncio.timeout(30):  # nor does anything else think that it is paused
            acquired = await limit.acquire(**keys)
        assert acquired.waited < 0.5 + BUSY
        await limit.release(acquired)
