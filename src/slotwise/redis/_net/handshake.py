"""Opening a connection: address, TLS, greeting, password, database, channel.

This is plain blocking code, run in a short-lived thread, so that every way it
can fail is seen in one place. What comes out is a socket that has been greeted
and, if asked, is subscribed; `Connection` takes it from there.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any

import hiredis
from hiredis import pack_command

from slotwise.errors import BackendError
from slotwise.redis import _diagnosis
from slotwise.redis._config import Endpoint, RedisConfig, show_address
from slotwise.redis._scripts import OURS, Script, load

Address = tuple[str, int]

# From a server with sentinels, an answer that took longer is not believed before they were asked
# who the primary is: it may have been replaced meanwhile. They take longer than this to do so.
LATE = 0.5

SWITCHES = "+switch-master"  # the channel on which sentinels tell of new primaries


class Handshake:
    """A blocking conversation over a fresh socket."""

    def __init__(
        self, sock: socket.socket, deadline: float, endpoint: Endpoint, address: Address
    ) -> None:
        self.sock = sock
        self.reader = hiredis.Reader()
        self._deadline = deadline
        self._endpoint = endpoint
        self.address = address
        self.unknown: list[Script] = []  # scripts of ours that the server does not know
        self._heard = b""  # how the last answer began, for who does not understand it

    def allow(self, seconds: float) -> None:
        """Let all answers together take so long from now on."""
        self._deadline = time.monotonic() + seconds

    def ask(self, *words: Any) -> Any:
        """Send one command and give its reply; errors are given, not raised."""
        self.send([words])
        return self.reply()

    def send(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send commands in one write: their replies cost one round trip together."""
        self.sock.sendall(b"".join(pack_command(tuple(words)) for words in commands))

    def reply(self) -> Any:
        """The next reply; messages that stand before it are skipped.

        Whoever waits for messages asks what it missed once the connection is in use.
        """
        while (reply := self._parsed()) is False or _is_message(reply):
            if reply is not False:
                continue
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._heard = data[:100]
            self.reader.feed(data)
        return reply

    def _parsed(self) -> Any:
        try:
            return self.reader.gets()
        except hiredis.ProtocolError:
            raise self.misunderstood() from None

    def quoted(self, words: object) -> str:
        """What the server said, as a message may quote it."""
        return _diagnosis.said_by(self._endpoint, words)

    def misunderstood(self) -> BackendError:
        """What to say of a server whose last answer is not one that Redis would give."""
        return _diagnosis.not_redis(self._endpoint, show_address(self.address), self._heard)


def _is_message(reply: Any) -> bool:
    return isinstance(reply, hiredis.PushNotification) and reply[0] == b"message"


def dial(
    config: RedisConfig, address: Address, questions: Sequence[Sequence[Any]] = ()
) -> Handshake:
    """A greeted connection to ``address``; the replies to ``questions`` come next.

    They travel with the greeting: a server that is far away is asked everything at once.
    """
    endpoint = config.endpoint
    deadline = time.monotonic() + config.connect_timeout
    talk = _connect(endpoint, address, config.connect_timeout, deadline)
    try:
        greeting = ["HELLO", "3"]
        if endpoint.password is not None:
            greeting += ["AUTH", endpoint.username or "default", endpoint.password]
        greeting += ["SETNAME", "slotwise"]
        select = [["SELECT", endpoint.database]] if endpoint.database else []
        talk.send([greeting, *select, *questions])
        hello = talk.reply()
        if isinstance(hello, hiredis.ReplyError):
            raise hello
        try:
            version = hello[b"version"].decode()
            number = tuple(int(part) for part in version.split(".")[:2])
        except (LookupError, TypeError, AttributeError, ValueError):
            raise talk.misunderstood() from None
        if number < (6, 2):
            raise _diagnosis.too_old(endpoint, version)
        if select:
            selected = talk.reply()
            if isinstance(selected, hiredis.ReplyError):
                raise selected
    except BaseException:
        talk.sock.close()
        raise
    return talk


def open_line(
    config: RedisConfig, address: Address | None, channel: str | None, *, teach: bool = True
) -> Handshake:
    """A connection ready for use, subscribed to ``channel``.

    Without ``teach`` the caller loads the scripts that are ``unknown`` there, before its
    first call and without waiting for it.

    ``address`` None is the one server of the configuration, or the primary
    that its sentinels name.

    Raises:
        BackendError: the server can't be used.
    """
    endpoint = config.endpoint
    asked_at = time.monotonic()
    try:
        if address is None:
            address = ask_sentinels(config) if endpoint.service else endpoint.addresses[0]
        scripts = [load(name) for name in OURS]
        questions: list[Sequence[Any]] = [["ROLE"]] if endpoint.service else []
        questions += [
            ["INFO", "memory"],
            ["EXISTS", f"{config.namespace}:semaphore_state:"],
            ["SCRIPT", "EXISTS", *(script.sha for script in scripts)],
        ]
        if channel is not None:
            questions.append(["SUBSCRIBE", channel])
        talk = dial(config, address, questions)
        try:
            if endpoint.service:
                role = talk.reply()
                if isinstance(role, list) and role[:1] != [b"master"]:
                    raise _diagnosis.Unreachable(f"{endpoint} has no primary at the moment")
            _look_at_eviction(endpoint, talk.reply())
            probe = talk.reply()
            if isinstance(probe, hiredis.ReplyError) and _diagnosis.passes(probe):
                raise probe
            known = talk.reply()
            if channel is not None:
                subscribed = talk.reply()
                if isinstance(subscribed, hiredis.ReplyError):
                    raise subscribed
            if isinstance(known, list):  # else this user may not, and they are sent when used
                talk.unknown = [s for s, there in zip(scripts, known, strict=True) if not there]
            if teach:
                _teach(talk)
            late = time.monotonic() - asked_at > LATE
            if endpoint.service and late and ask_sentinels(config) != address:
                raise _diagnosis.Unreachable(f"{endpoint} has got another primary meanwhile")
            talk.sock.settimeout(0)
        except BaseException:
            talk.sock.close()
            raise
    except hiredis.ReplyError as reply:
        if _diagnosis.passes(reply):
            said = _diagnosis.said_by(endpoint, reply)
            raise _diagnosis.Unreachable(f"{endpoint} is not ready: {said}") from None
        raise _diagnosis.refused(endpoint, reply, _diagnosis.Unusable) from None
    except (OSError, ValueError) as error:
        raise _diagnosis.unreachable(endpoint, error) from error
    return talk


def ask_sentinels(config: RedisConfig) -> Address:
    """Where the primary is, by the first sentinel that knows."""
    talk, primary = _open_sentinel(config)
    talk.sock.close()
    return primary


def listen_to_sentinel(config: RedisConfig) -> tuple[Handshake, Address]:
    """A connection to a sentinel that tells of every new primary, and where the present one is.

    Raises:
        BackendError: no sentinel answers.
        OSError, ReplyError: the one that did can't be listened to.
    """
    talk, _ = _open_sentinel(config)
    try:
        endpoint = config.endpoint
        greeting = ["HELLO", "3"]
        if endpoint.sentinel_password is not None:
            greeting += ["AUTH", endpoint.sentinel_username or "default"]
            greeting.append(endpoint.sentinel_password)
        for words in (greeting, ["SUBSCRIBE", SWITCHES]):
            reply = talk.ask(*words)
            if isinstance(reply, hiredis.ReplyError):
                raise reply
        # Asked again, since it may have changed before we listened.
        primary = read_primary(talk.ask(*where_is_primary(endpoint)))
        if primary is None:
            raise ConnectionResetError("it forgot the service")
        talk.sock.settimeout(0)
    except BaseException:
        talk.sock.close()
        raise
    return talk, primary


def where_is_primary(endpoint: Endpoint) -> list[Any]:
    return ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", endpoint.service]


def read_primary(reply: Any) -> Address | None:
    """What a sentinel answers to that; None if it does not know."""
    return (reply[0].decode(), int(reply[1])) if isinstance(reply, list) else None


def _open_sentinel(config: RedisConfig) -> tuple[Handshake, Address]:
    """A connection to the first sentinel that knows the primary, and the primary."""
    endpoint = config.endpoint
    last: Exception | None = None
    for address in endpoint.addresses:
        talk = None
        try:
            deadline = time.monotonic() + config.connect_timeout
            talk = _connect(endpoint, address, config.connect_timeout, deadline)
            if endpoint.sentinel_password is not None:
                user = [endpoint.sentinel_username] if endpoint.sentinel_username else []
                talk.ask("AUTH", *user, endpoint.sentinel_password)
            reply = talk.ask(*where_is_primary(endpoint))
            try:
                primary = read_primary(reply)
            except (LookupError, AttributeError, TypeError, ValueError):
                raise talk.misunderstood() from None
            if primary is not None:
                return talk, primary
            last = reply if isinstance(reply, Exception) else None
        except OSError as error:  # and what we make of them
            last = error
        if talk is not None:
            talk.sock.close()
    raise _diagnosis.Unreachable(
        f"{endpoint} is known to no sentinel that answers; check their addresses and its name"
        + (f" ({_diagnosis.said_by(endpoint, last)})" if last else "")
    )


def ask_cluster(config: RedisConfig, known: tuple[Address, ...] = ()) -> list[tuple[int, Address]]:
    """Which node serves which hash slots: (last slot, address), in order."""
    endpoint = config.endpoint
    last: BaseException | None = None
    for address in dict.fromkeys((*known, *endpoint.addresses)):
        try:
            talk = dial(config, address)
            try:
                ranges = talk.ask("CLUSTER", "SLOTS")
            finally:
                talk.sock.close()
        except (OSError, hiredis.ReplyError) as error:
            last = error
            continue
        if isinstance(ranges, hiredis.ReplyError):
            said = _diagnosis.said_by(endpoint, ranges)
            raise _diagnosis.Unusable(f"{endpoint} is no cluster ({said}); use redis:// for it")
        nodes: list[tuple[int, Address]] = []
        try:
            for _, last_slot, primary, *_ in sorted(ranges, key=lambda each: int(each[0])):
                # A node that does not know its own name is the one that we asked.
                host = primary[0].decode() if primary[0] else ""
                nodes.append((int(last_slot), (host or address[0], int(primary[1]))))
        except (LookupError, AttributeError, TypeError, ValueError):
            last = talk.misunderstood()
            continue
        if nodes:
            return nodes
        last = None
    if isinstance(last, hiredis.ReplyError):
        raise _diagnosis.refused(endpoint, last, _diagnosis.Unusable)
    raise _diagnosis.unreachable(endpoint, last or OSError("no node serves any slot"))


def _connect(endpoint: Endpoint, address: Address, timeout: float, deadline: float) -> Handshake:
    host, port = address
    if port == 0:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(host)
        except BaseException:
            sock.close()
            raise
    else:
        sock = socket.create_connection(address, timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if endpoint.tls is not None:
            try:
                sock = _context(dict(endpoint.tls)).wrap_socket(sock, server_hostname=host)
            except TimeoutError:
                sock.close()
                raise _diagnosis.Unreachable(
                    f"{endpoint} does not answer a TLS greeting; is it redis:// instead?"
                ) from None
            except BaseException:
                sock.close()
                raise
    return Handshake(sock, deadline, endpoint, address)


def _context(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path")
    )
    wanted = options.get("ssl_cert_reqs", "required")
    if wanted in ("none", ssl.CERT_NONE):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif str(options.get("ssl_check_hostname", True)).lower() in ("false", "0", "no"):
        context.check_hostname = False
    if options.get("ssl_certfile"):
        context.load_cert_chain(
            options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password")
        )
    return context


def _teach(talk: Handshake) -> None:
    """Let the server know all our scripts."""
    if talk.unknown:
        talk.send([["SCRIPT", "LOAD", script.source] for script in talk.unknown])
        for _ in talk.unknown:
            talk.reply()


def _look_at_eviction(endpoint: Endpoint, info: Any) -> None:
    if isinstance(info, bytes):  # some users may not ask
        for line in info.decode(errors="replace").splitlines():
            if line.startswith("maxmemory_policy:"):
                _diagnosis.warn_of_eviction(endpoint, line.partition(":")[2].strip())


__all__ = [
    "Address",
    "Handshake",
    "ask_cluster",
    "dial",
    "open_line",
    "pack_command",
    "show_address",
]
