"""A real HTTP server with a knee, load of four processes, one limit on Redis: it finds the knee."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean

import pytest
from tests import _fresh_processes
from tests.adaptive._service import NAME, rules
from tests.redis._server import Server
from tests.redis.conftest import server, shared_server  # noqa: F401 - fixtures

from slotwise.redis import RedisConfig, RedisSemaphore

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
WORKERS = 8  # of the service: more calls than that only wait there
PROCESSES = 4


@contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.adaptive._service", *map(str, words)]
    process = _fresh_processes.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def load(server: Server, start: int) -> Iterator[Callable[[], int]]:  # noqa: F811
    """Four processes call the service, each with more tasks than it has workers."""
    with ExitStack() as stack:
        service = stack.enter_context(running("serve", WORKERS, 0.04))
        assert service.stdout is not None
        port = int(service.stdout.readline())
        for _ in range(PROCESSES):
            stack.enter_context(running("call", port, server.url, start, 12))
        limit = RedisSemaphore(rules(start), name=NAME, config=RedisConfig(server.url))
        yield lambda: limit.stats_sync().max_slots


def wait_for(value: Callable[[], int], least: int, most: int) -> None:
    """Fails if the value doesn't come there, on however slow a machine."""
    give_up_at = time.monotonic() + 60
    while not least <= value() <= most:
        assert time.monotonic() < give_up_at, f"it is {value()}"
        time.sleep(0.1)


@pytest.mark.soak
@pytest.mark.parametrize("start", [2, 40])
def test_the_limit_finds_the_knee_and_stays_there(server: Server, start: int) -> None:  # noqa: F811
    with load(server, start) as value:
        wait_for(value, WORKERS * 3 // 4, WORKERS * 3 // 2)
        time.sleep(10)
        seen = []
        for _ in range(100):
            seen.append(value())
            time.sleep(0.1)
        assert WORKERS * 0.75 <= fmean(seen) <= WORKERS * 1.75
