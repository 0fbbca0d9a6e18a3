"""Wrong arguments, and servers that can't be used: errors name the server and the remedy."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.redis._server import Server, free_port

from slotwise import AcquireTimeout, SlotwiseError
from slotwise._cli.main import main as command_line
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore


def impatient(url: str, **options: object) -> RedisSemaphore:
    config = RedisConfig(url, attempts=2, connect_timeout=1, reply_timeout=1, **options)  # type: ignore[arg-type]
    return RedisSemaphore(name="s", value=1, config=config)


async def complaint_of(semaphore: RedisSemaphore, **options: float) -> str:
    with pytest.raises(BackendError) as caught:
        await asyncio.wait_for(semaphore.acquire(**options), 30)
    assert isinstance(caught.value, SlotwiseError)
    assert isinstance(caught.value, ConnectionError)
    assert "timeout" in options or not isinstance(caught.value, AcquireTimeout)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("localhost:6379", "url must begin with redis://"),
        ("http://:secret@localhost", "url must begin with redis://.*, not http://..."),
        ("redis://:secret@localhost:port", "url can't be read"),
        ("redis://:secret@localhost/one", "url can't be read"),
        ("redis+sentinel://localhost", "must name the service.*:port/service/database,"),
        ("redis+cluster://localhost:x", "url can't be read.*host:port,host:port,"),
        ("unix:///socket?db=one", r"url can't be read.*unix:///path\?db=0,"),
        ("redis+cluster://localhost/3", "has only 0"),
    ],
)
def test_a_wrong_url_is_explained_without_its_password(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        RedisConfig(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"url": 1}, "url must be a str"),
        ({"namespace": ""}, "namespace must not be empty"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"connect_timeout": None}, "connect_timeout must be a number of seconds"),
        ({"backoff": -1}, "backoff must be finite"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, object], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        RedisConfig(**wrong)  # type: ignore[arg-type]


async def test_a_server_that_is_down_is_named_after_few_attempts() -> None:
    port = free_port()
    complaint = await complaint_of(impatient(f"redis://:secret@127.0.0.1:{port}"))
    assert f"Redis at 127.0.0.1:{port} can't be reached; is it running" in complaint
    assert "secret" not in complaint


async def test_a_timeout_while_connecting_names_the_server() -> None:
    port = free_port()
    config = RedisConfig(f"redis://127.0.0.1:{port}", attempts=1000)
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    with pytest.raises(AcquireTimeout, match="can't be reached") as caught:
        await asyncio.wait_for(semaphore.acquire(timeout=0.3), 30)
    assert isinstance(caught.value, BackendError)


async def test_an_unknown_host_is_named() -> None:
    assert "unknown host name" in await complaint_of(impatient("redis://no.invalid"))


async def test_a_wrong_password_and_a_missing_one(tmp_path: Path) -> None:
    server = Server(tmp_path, "--requirepass", "right")
    server.password = "right"
    with server:
        address = f"127.0.0.1:{server.port}"
        complaint = await complaint_of(impatient(f"redis://:wrong@{address}"))
        assert f"Redis at {address} refuses the user or password" in complaint
        assert "wrong" not in complaint
        complaint = await complaint_of(impatient(f"redis://{address}"))
        assert "requires a password" in complaint
        async with impatient(f"redis://:right@{address}"):
            pass


async def test_missing_rights_are_named(server: Server) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "guest", "on", ">pw", "~other:*", "+@all", "&*")
        try:
            url = f"redis://guest:pw@127.0.0.1:{server.port}"
            assert "doesn't give this user enough rights" in await complaint_of(impatient(url))
            allowed = "~adv-sem:*"
            client.execute_command("ACL", "SETUSER", "guest", allowed, "resetchannels")
            client.execute_command("ACL", "SETUSER", "guest", "&slotwise:*")
            async with impatient(f"{url}/0?client_name=again"):
                pass
        finally:
            client.execute_command("ACL", "DELUSER", "guest")


@pytest.mark.parametrize("lacking", [("TIME",), ("PEXPIRE", "ZADD")])
async def test_commands_that_the_server_lacks_are_named_with_the_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], lacking: tuple[str, ...]
) -> None:
    options = [word for name in lacking for word in ("--rename-command", name, "")]
    with Server(tmp_path, *options) as server:
        complaint = await complaint_of(impatient(server.url))
        # Redis 7 doesn't tell which line of a script has failed.
        named = any(
            f"lacks {name}, which our scripts call; remove" in complaint for name in lacking
        )
        assert named or "lacks a command, which our scripts call; remove" in complaint
        assert "'slotwise doctor' lists all" in complaint
        assert await asyncio.to_thread(command_line, ["doctor", "--url", server.url]) == 1
    found = " ".join(capfd.readouterr().out.split())
    assert f"the server has no {', '.join(lacking)}, which they call" in found
    assert "remove their rename-command" in found
    assert "+scan" not in found
    assert "run 'slotwise doctor" not in found


async def test_a_command_that_a_user_may_not_run_is_named_with_the_remedy(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://guest:s3cret@127.0.0.1:{server.port}"
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "guest", "on", ">s3cret", "~*", "&*", "+@all")
        try:
            client.execute_command("ACL", "SETUSER", "guest", "-time")
            complaint = await complaint_of(impatient(url))
            assert await asyncio.to_thread(command_line, ["doctor", "--url", url]) == 1
        finally:
            client.execute_command("ACL", "DELUSER", "guest")
    found = " ".join(capfd.readouterr().out.split())
    for text in (complaint, found.partition(" scripts ")[2]):
        assert re.search("doesn't give this user enough rights( to run TIME)?;? grant it", text)
        assert "grant it" in text
        assert "+time" in text
    assert "load-scripts" not in found
    assert "s3cret" not in complaint + found


async def test_a_read_only_replica_names_the_remedy(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "primary", "--repl-diskless-sync-delay", "0") as primary,
        Server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port)) as replica,
    ):
        with replica.client() as client:
            while client.info("replication")["master_link_status"] != "up":
                await asyncio.sleep(0.02)
        complaint = await complaint_of(impatient(replica.url))
        assert f"Redis at 127.0.0.1:{replica.port} is a read-only replica" in complaint
        assert "primary" in complaint


async def test_an_eviction_policy_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evicting = Server(tmp_path, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    with evicting as server, caplog.at_level(logging.WARNING, "slotwise.redis"):
        for namespace in ("one", "other"):
            async with impatient(server.url, namespace=namespace):
                pass
    warnings = [record for record in caplog.records if "evicts keys" in record.getMessage()]
    assert len(warnings) == 1
    assert "allkeys-lru" in warnings[0].getMessage()
    assert "noeviction" in warnings[0].getMessage()


class SpeaksLikeAnOldServer(threading.Thread):
    """Greets as Redis 5 does (no HELLO), or as 6.0 (too old a version)."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(daemon=True)
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                if client.recv(1000):
                    client.sendall(self._reply)

    def __enter__(self) -> SpeaksLikeAnOldServer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(10)


@pytest.mark.parametrize(
    "reply", [b"-ERR unknown command `HELLO`\r\n", b"%1\r\n$7\r\nversion\r\n$5\r\n6.0.9\r\n"]
)
async def test_a_server_that_is_too_old_is_named(reply: bytes) -> None:
    with SpeaksLikeAnOldServer(reply) as server:
        assert "needs Redis 6.2 or later" in await complaint_of(impatient(server.url))


NOT_REDIS = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "pop3": b"+OK POP3 ready\r\n",
    "imap": b"* OK IMAP4rev1 ready\r\n",
    "tls": b"\x15\x03\x03\x00\x02\x02\x46",
    "a map": b"%1\r\n+proto\r\n:3\r\n",
    "a number": b":42\r\n",
    "nothing": b"_\r\n",
}


@pytest.mark.parametrize("answer", NOT_REDIS.values(), ids=NOT_REDIS)
async def test_a_port_that_is_not_redis_is_named(answer: bytes) -> None:
    with SpeaksLikeAnOldServer(answer) as server:
        where = server.url.removeprefix("redis://")
        complaint = await complaint_of(impatient(server.url))
        assert complaint.startswith(f"{where} does not speak Redis: it answered ")
        for kind in ("redis+cluster://", "redis+sentinel://"):
            path = "/service" if "sentinel" in kind else ""
            assert where in await complaint_of(impatient(f"{kind}{where}{path}"), timeout=1)


def test_a_unix_socket_and_another_database(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Server(tmp_path / "redis", "--unixsocket", str(path)) as server:
        config = RedisConfig(f"unix://{path}?db=2")
        with RedisSemaphore(name="s", value=1, config=config), server.client(db=2) as client:
            assert client.exists("adv-sem:semaphore_main:s")


@pytest.mark.parametrize("missing", ["redis", "hiredis"])
def test_without_redis_py_it_says_what_to_install(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import slotwise\n"
        "try: from slotwise.redis import RedisSemaphore\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'slotwise[redis]'" in done.stdout


def test_importing_slotwise_imports_no_redis() -> None:
    code = "import slotwise, sys; print([m for m in sys.modules if 'redis' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
