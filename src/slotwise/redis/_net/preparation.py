"""Make a new connection ready for use: find the primary, check the server, subscribe.

All queries to the server are sent with the greeting, in one round trip.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from slotwise.redis import _diagnosis
from slotwise.redis._config import RedisConfig
from slotwise.redis._endpoint import Address, Endpoint
from slotwise.redis._net.handshake import Handshake, greet
from slotwise.redis._net.sentinel import LATE, ask_sentinels
from slotwise.redis._scripts import OURS, load


def open_connection(
    config: RedisConfig,
    address: Address | None,
    channel: str | None,
    *,
    load_scripts: bool = True,
    on_socket: Callable[[socket.socket], object] | None = None,
) -> Handshake:
    """Return a connection that is ready for use, subscribed to ``channel``.

    ``address`` None means the only server of the configuration, or the primary that its sentinels
    name. Without ``load_scripts`` the caller loads the `missing_scripts`, before its first call
    and without waiting for the replies. ``on_socket`` gets the socket before the greeting.

    Raises:
        BackendError: the server can't be used.
    """
    endpoint = config.endpoint
    asked_at = time.monotonic()
    try:
        if address is None:
            address = ask_sentinels(config) if endpoint.service else endpoint.addresses[0]
        handshake = greet(config, address, _questions(config, channel), on_socket)
        try:
            _read_answers(handshake, endpoint, channel)
            if load_scripts:
                _load_scripts(handshake)
            late = time.monotonic() - asked_at > LATE
            if endpoint.service and late and ask_sentinels(config) != address:
                raise _diagnosis.Unreachable(f"{endpoint} has another primary by now")
            handshake.sock.settimeout(0)
        except BaseException:
            handshake.sock.close()
            raise
    except hiredis.ReplyError as reply:
        if _diagnosis.is_temporary(reply):
            said = _diagnosis.said_by(endpoint, reply)
            raise _diagnosis.Unreachable(f"{endpoint} is not ready: {said}") from None
        raise _diagnosis.refused(endpoint, reply, _diagnosis.Unusable) from None
    except (OSError, ValueError) as error:
        raise _diagnosis.unreachable(endpoint, error) from error
    return handshake


def _questions(config: RedisConfig, channel: str | None) -> list[Sequence[Any]]:
    """Return what to ask a server before it is used; `_read_answers` reads the replies."""
    questions: list[Sequence[Any]] = [["ROLE"]] if config.endpoint.service else []
    questions += [
        ["INFO", "memory"],
        ["EXISTS", f"{config.namespace}:semaphore_state:"],
        ["SCRIPT", "EXISTS", *(load(name).sha for name in OURS)],
    ]
    if channel is not None:
        questions.append(["SUBSCRIBE", channel])
    return questions


def _read_answers(handshake: Handshake, endpoint: Endpoint, channel: str | None) -> None:
    if endpoint.service:
        role = handshake.reply()
        if isinstance(role, list) and role[:1] != [b"master"]:
            raise _diagnosis.Unreachable(f"{endpoint} has no primary at the moment")
    _check_eviction(endpoint, handshake.reply())
    probe = handshake.reply()
    if isinstance(probe, hiredis.ReplyError) and _diagnosis.is_temporary(probe):
        raise probe
    known = handshake.reply()
    if isinstance(known, list):  # otherwise this user may not ask: scripts are sent when used
        scripts = [load(name) for name in OURS]
        handshake.missing_scripts = [s for s, has in zip(scripts, known, strict=True) if not has]
    if channel is not None:
        subscribed = handshake.reply()
        if isinstance(subscribed, hiredis.ReplyError):
            raise subscribed


def _check_eviction(endpoint: Endpoint, info: Any) -> None:
    if isinstance(info, bytes):  # some users may not ask
        for line in info.decode(errors="replace").splitlines():
            if line.startswith("maxmemory_policy:"):
                _diagnosis.warn_of_eviction(endpoint, line.partition(":")[2].strip())


def _load_scripts(handshake: Handshake) -> None:
    scripts = handshake.missing_scripts
    if scripts:
        handshake.send([["SCRIPT", "LOAD", script.source] for script in scripts])
        for _ in scripts:
            handshake.reply()
