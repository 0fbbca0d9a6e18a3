"""TLS: by the server itself where it was built with it, and behind a proxy that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
import redis.connection
from tests.redis._server import Server, free_port
from tests.redis.faults._proxy import Proxy
from tests.redis.test_semaphore import assert_nothing_left, in_line

from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore


class TlsServer(Server):
    """A redis-server that speaks TLS on a second port, and wants to see a certificate there."""

    def __init__(self, folder: Path, certificate: Path, key: Path) -> None:
        self.tls_port = free_port()
        super().__init__(
            folder,
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "yes"),
            *("--tls-cert-file", str(certificate), "--tls-key-file", str(key)),
            *("--tls-ca-cert-file", str(certificate)),
        )


class EndsTls(Proxy):
    """TLS up to here, and plain from here to the server."""

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        super().__init__(port)

    def welcome(self, client: socket.socket) -> socket.socket:
        return self._context.wrap_socket(client, server_side=True)


class Certificate:
    """One that vouches for itself, and its key."""

    def __init__(self, folder: Path) -> None:
        self.file, self.key = folder / "certificate.pem", folder / "key.pem"
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("no openssl command to make a certificate with")
        subprocess.run(
            [
                *(openssl, "req", "-x509", "-nodes", "-days", "2"),
                *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-keyout", self.key, "-out", self.file, "-subj", "/CN=slotwise.invalid"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
            ],
            check=True,
            capture_output=True,
        )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate that the server does not have."""
    return Certificate(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(params=["server", "proxy"])
def tls_port(
    request: pytest.FixtureRequest, server: Server, certificate: Certificate, tmp_path: Path
) -> Iterator[int]:
    """A port that speaks TLS; what is behind it is `server` only for the proxy."""
    with contextlib.ExitStack() as stack:
        if request.param == "proxy":
            yield stack.enter_context(EndsTls(server.port, certificate.file, certificate.key)).port
            return
        own = TlsServer(tmp_path / "redis", certificate.file, certificate.key)
        try:
            stack.enter_context(own)
        except RuntimeError as refused:
            if "Bad directive" not in str(refused):
                raise
            pytest.skip("this redis-server was built without TLS")
        yield own.tls_port


def url(port: int, certificate: Certificate, authority: Certificate) -> str:
    return (
        f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority.file}"
        f"&ssl_certfile={certificate.file}&ssl_keyfile={certificate.key}"
    )


async def test_slots_are_taken_waited_for_and_given_over_tls(
    tls_port: int, certificate: Certificate
) -> None:
    config = RedisConfig(url(tls_port, certificate, certificate))
    semaphore = RedisSemaphore(name="s", value=2, config=config)
    inside = most = 0
    order: list[int] = []
    two_inside = asyncio.Event()

    async def work(n: int) -> None:
        nonlocal inside, most
        async with semaphore:
            order.append(n)
            inside += 1
            most = max(most, inside)
            if inside == 2:
                two_inside.set()
            await two_inside.wait()
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.wait_for(asyncio.gather(*(work(n) for n in range(200))), 30)
    assert order == list(range(200))
    assert most == 2
    acquired = await asyncio.to_thread(semaphore.acquire_sync)
    assert await asyncio.to_thread(semaphore.release_sync, acquired)


async def test_replies_and_requests_longer_than_a_tls_record_come_whole(
    tls_port: int, certificate: Certificate
) -> None:
    config = RedisConfig(url(tls_port, certificate, certificate))
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    held = await semaphore.acquire()
    label = "x" * 1000
    tasks = [asyncio.create_task(semaphore.acquire(label=f"{n} {label}")) for n in range(300)]
    await in_line(semaphore, 300)
    waiters = await asyncio.wait_for(semaphore.waiters(), 30)
    assert [each.label for each in waiters] == [f"{n} {label}" for n in range(300)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await semaphore.release(held)
    assert (await semaphore.stats()).waiting == 0


async def test_a_certificate_of_strangers_is_refused(
    tls_port: int, certificate: Certificate, stranger: Certificate
) -> None:
    config = RedisConfig(url(tls_port, certificate, stranger))
    with pytest.raises(BackendError, match=r"certificate that can't be trusted .*ssl_ca_certs="):
        await RedisSemaphore(value=1, config=config).acquire()


async def test_tls_is_not_spoken_with_a_plain_server(
    server: Server, client: redis.Redis, certificate: Certificate
) -> None:
    config = RedisConfig(
        url(server.port, certificate, certificate), attempts=1, connect_timeout=0.5
    )
    with pytest.raises(BackendError, match=f"127.0.0.1:{server.port} .* TLS.* redis://"):
        await RedisSemaphore(value=1, config=config).acquire()
    assert_nothing_left(client)
    async with RedisSemaphore(value=1, config=RedisConfig(server.url)):
        pass  # the outage ends here, and is not reported in another test


async def test_a_host_name_that_the_certificate_does_not_have_is_refused(
    server: Server, certificate: Certificate
) -> None:
    """Its certificate is for 127.0.0.1; checked by default, whatever redis-py's default is."""
    with EndsTls(server.port, certificate.file, certificate.key) as proxy:
        by_name = f"rediss://localhost:{proxy.port}?ssl_ca_certs={certificate.file}"
        with pytest.raises(BackendError, match="certificate that can't be trusted"):
            await RedisSemaphore(value=1, config=RedisConfig(by_name)).acquire()
        for option in ("ssl_check_hostname=false", "ssl_cert_reqs=none"):
            semaphore = RedisSemaphore(value=1, config=RedisConfig(f"{by_name}&{option}"))
            assert await semaphore.release(await semaphore.acquire())
