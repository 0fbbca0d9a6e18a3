"""Records in which order, and when by its clock, a Redis server took note of requests.

By MONITOR, which shows every command as it is run: a request arrives when a script first stores
something under its id.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path

from tests.soak._history import Recorder

_ID = re.compile(rb'"(sw-[^"]+)"')


class Monitor:
    """A thread that listens while the block lasts, also to a server that comes back."""

    def __init__(self, port: int, history: Path) -> None:
        self._port = port
        self._recorder = Recorder(history, f"monitor-{port}")
        self._enough = threading.Event()
        self.listens = threading.Event()
        self._seen: set[bytes] = set()
        self._deaf_since: float | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Monitor:
        self._thread.start()
        assert self.listens.wait(20), "the server never answered"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._enough.set()
        self._thread.join()
        self._recorder.close()

    def _run(self) -> None:
        while not self._enough.is_set():
            self._deaf_since = time.monotonic()
            try:
                with socket.create_connection(("127.0.0.1", self._port), 1) as sock:
                    sock.sendall(b"MONITOR\r\n")
                    sock.settimeout(0.1)
                    self._listen(sock)
            except OSError:
                time.sleep(0.01)

    def _listen(self, sock: socket.socket) -> None:
        rest = b""
        while True:
            try:
                data = sock.recv(1 << 20)
            except TimeoutError:
                if self._enough.is_set():
                    return
                continue
            if not data:
                return
            if self._deaf_since is not None:
                self._recorder.write("deaf", since=self._deaf_since)
                self._deaf_since = None
                self.listens.set()
            *lines, rest = (rest + data).split(b"\r\n")
            for line in lines:
                command = line[:60]
                if b" lua] " in command and (b'"ZADD"' in command or b'"HSET"' in command):
                    self._stored(line)

    def _stored(self, line: bytes) -> None:
        new = [claim_id for claim_id in _ID.findall(line) if claim_id not in self._seen]
        if new and b'"XX"' not in line:
            self._seen.update(new)
            at = float(line[1:].split(b" ", 1)[0])
            self._recorder.write("arrival", at=at, ids=[claim_id.decode() for claim_id in new])
