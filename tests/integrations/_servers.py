"""Real web servers for the tests: uvicorn in a thread, or any server as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import wsgiref.simple_server
from collections.abc import Iterator
from pathlib import Path

import httpx
import uvicorn
from tests import _fresh_processes
from tests.redis._server import free_port, wait_until

LIMIT = 60  # seconds; only for tests that hang


@contextlib.contextmanager
def uvicorn_thread(app, **options) -> Iterator[int]:
    """Serve an app of this process; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(app, log_level="warning", loop="asyncio", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "uvicorn")
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LIMIT)
        listener.close()
        assert not thread.is_alive()


class _ThreadingServer(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


class _SilentHandler(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args: object) -> None: ...


@contextlib.contextmanager
def wsgi_thread(app) -> Iterator[int]:
    """Serve a WSGI app of this process, each request in a thread; yields the port."""
    server = wsgiref.simple_server.make_server(
        "127.0.0.1", 0, app, server_class=_ThreadingServer, handler_class=_SilentHandler
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(LIMIT)
        server.server_close()


class Switch:
    """An ASGI app that passes requests on to the app of a test, so that tests share a server."""

    def __init__(self) -> None:
        self.app = None

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)


@contextlib.contextmanager
def process(
    *command: str,
    port: int | None = None,
    cwd: Path,
    patience: float = 10,
    **environment: str,
) -> Iterator[subprocess.Popen[str]]:
    """Run a server as a process until the block is left; waits until its port answers.

    It has ``patience`` seconds to end when it is told to.
    """
    log = cwd / f"log-{free_port()}"
    with log.open("w") as output:
        started = _fresh_processes.Popen(
            [sys.executable, *command],
            cwd=cwd,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
            start_new_session=True,  # so that all that it starts can be ended with it
        )
    try:
        if port is not None:
            wait_until(lambda: listens(port) or started.poll() is not None, f"{command}")
            assert started.poll() is None, log.read_text()
        started.log = log
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(LIMIT)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


# Not httpx.get(): it makes an SSL context for every request. Each request has a connection of its
# own: a server may be about to close the last one.
http = httpx.Client(verify=False, trust_env=False, timeout=LIMIT, headers={"Connection": "close"})


class Client:
    """One raw connection, to leave in the middle of whatever."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)

    def send(self, path: str = "/", *fields: str, method: str = "GET", body: bytes = b"") -> Client:
        lines = [f"{method} {path} HTTP/1.1", "Host: test", *fields]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return self

    def read_until(self, what: bytes) -> bytes:
        got = b""
        while what not in got:
            data = self.socket.recv(65536)
            assert data, f"closed before {what!r}: {got!r}"
            got += data
        return got

    def read_all(self) -> bytes:
        got = b""
        while data := self.socket.recv(65536):
            got += data
        return got

    def leave(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()
