"""A proxy between client and server that loses things: one small class per failure."""

from __future__ import annotations

import queue
import socket
import threading
import time


class Proxy:
    """Passes everything on, until `break_next` is set; then it fails once, in its way."""

    _asked = False  # whether the request that is answered next is the one to break

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self.break_next = threading.Event()
        self.broken = threading.Event()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)  # it adds no pairs after this
        for pair in self._pairs:
            self._cut(*pair)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                client = self.welcome(client)
            except OSError:  # it does not speak as we do
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # it is not running
                client.close()
                continue
            for sock in (client, server):  # or a reply waits for the receipt of the one before it
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs.append((client, server))
            for run in (self._requests, self._replies):
                thread = threading.Thread(target=run, args=(client, server), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(client):
            if self.break_next.is_set() and self.wanted(data) and self.fails_request(data):
                self._note(client, server)
                return
            _send(server, data)
        self._cut(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(server):
            if self.break_next.is_set() and self.fails_reply(client, data):
                self._note(client, server)
                return
            _send(client, data)
        self._cut(client, server)

    def _note(self, client: socket.socket, server: socket.socket) -> None:
        self.break_next.clear()
        self._cut(client, server)
        self.broken.set()

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        for sock in (client, server):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    def drop(self) -> None:
        """Cut all connections, whatever is on its way; new ones work."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._cut(*pair)

    def break_again(self) -> None:
        """Break the next connection, too, after one that was broken."""
        self.broken.clear()
        self._asked = False
        self.break_next.set()

    def welcome(self, client: socket.socket) -> socket.socket:
        """What to talk with the client through."""
        return client

    def wanted(self, data: bytes) -> bool:
        """Heartbeats do not count."""
        return b"sw-" in data and b"EVALSHA" in data

    def fails_request(self, data: bytes) -> bool:
        return False

    def fails_reply(self, client: socket.socket, data: bytes) -> bool:
        return False


class LosesRequest(Proxy):
    """The connection is cut before the server sees the request."""

    def fails_request(self, data: bytes) -> bool:
        return True


class LosesReply(Proxy):
    """The script ran; the client never heard."""

    def fails_request(self, data: bytes) -> bool:
        self._asked = True
        return False

    def fails_reply(self, client: socket.socket, data: bytes) -> bool:
        return self._asked


class CutsAfterReply(Proxy):
    """The client heard, and then the connection was gone."""

    def fails_request(self, data: bytes) -> bool:
        self._asked = True
        return False

    def fails_reply(self, client: socket.socket, data: bytes) -> bool:
        if self._asked:
            _send(client, data)
        return self._asked


class IsSlow(Proxy):
    """Every reply takes ``delay`` seconds on its way; those behind it are not held up.

    ``round_trips`` is the most that any connection has waited for, one after the other.
    """

    delay = 0.3
    round_trips = 0

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        waits, due = 0, 0.0
        arriving: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        passing_on = threading.Thread(target=self._pass_on, args=(client, arriving), daemon=True)
        passing_on.start()
        while data := _receive(server):
            now = time.monotonic()
            if now >= due:  # else the client has not seen the reply before it
                waits += 1
                self.round_trips = max(self.round_trips, waits)
            due = now + self.delay
            arriving.put((due, data))
        arriving.put((0.0, b""))
        passing_on.join(10)
        self._cut(client, server)

    @staticmethod
    def _pass_on(client: socket.socket, arriving: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, data = arriving.get()
            if not data:
                return
            time.sleep(max(due - time.monotonic(), 0.0))
            _send(client, data)


class GoesSilent(Proxy):
    """The other end vanished without a word: what is sent there is lost, and nothing comes back.

    Connections that are opened after `vanish` work.
    """

    def __init__(self, port: int) -> None:
        self.lost_something = threading.Event()
        self._dead: set[socket.socket] = set()
        super().__init__(port)

    def vanish(self) -> None:
        self._dead.update(client for client, _ in self._pairs)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(client):
            if client in self._dead:
                self.lost_something.set()
            else:
                _send(server, data)
        self._cut(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(server):
            if client in self._dead:
                self.lost_something.set()
            else:
                _send(client, data)
        self._cut(client, server)


class Freezes(Proxy):
    """Replies, or everything, wait on their way until it thaws; then they go on, in order."""

    def __init__(self, port: int) -> None:
        self._requests_flow = threading.Event()
        self._replies_flow = threading.Event()
        self.thaw()
        super().__init__(port)

    def freeze_replies(self) -> None:
        self._replies_flow.clear()

    def freeze(self) -> None:
        self._requests_flow.clear()
        self._replies_flow.clear()

    def thaw(self) -> None:
        self._requests_flow.set()
        self._replies_flow.set()

    def __exit__(self, *exc_info: object) -> None:
        self.thaw()
        super().__exit__(*exc_info)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(client):
            self._requests_flow.wait()
            _send(server, data)
        self._cut(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(server):
            self._replies_flow.wait()
            _send(client, data)
        self._cut(client, server)


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except OSError:
        return b""


def _send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        pass
