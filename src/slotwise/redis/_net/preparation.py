"""Make a new connection ready for use: find the primary, check the server, subscribe.

All queries to the server are sent with the greeting, in one round trip. So are those to a sentinel:
redis-py's own discovery takes a connection pool per sentinel and several round trips, and can't
subscribe to changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import hiredis

from slotwise.redis import _diagnosis
from slotwise.redis._config import RedisConfig
from slotwise.redis._endpoint import Address, Endpoint
from slotwise.redis._net.handshake import Handshake, greet
from slotwise.redis._scripts import OURS, load

# With sentinels, a reply that took longer than this isn't trusted until they have confirmed that
# the server is still the primary. They take longer than this to replace it.
LATE = 0.5

SWITCH_MASTER = "+switch-master"  # the channel on which sentinels announce new primaries


def open_connection(
    config: RedisConfig, address: Address | None, channel: str | None, *, load_scripts: bool = True
) -> Handshake:
    """Return a connection that is ready for use, subscribed to ``channel``.

    ``address`` None means the only server of the configuration, or the primary that its sentinels
    name. Without ``load_scripts`` the caller loads the `missing_scripts`, before its first call
    and without waiting for the replies.

    Raises:
        BackendError: the server can't be used.
    """
    endpoint = config.endpoint
    asked_at = time.monotonic()
    try:
        if address is None:
            address = ask_sentinels(config) if endpoint.service else endpoint.addresses[0]
        handshake = greet(config, address, _questions(config, channel))
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


# ------------------------------------------------------------------- sentinels


def ask_sentinels(config: RedisConfig) -> Address:
    """Return the address of the primary, from the first sentinel that knows it.

    Raises:
        BackendError: no sentinel knows, or none answers.
    """
    handshake, primary = _open_sentinel(config, listen=False)
    handshake.sock.close()
    return primary


def listen_to_sentinel(config: RedisConfig) -> tuple[Handshake, Address]:
    """Return a connection on which a sentinel announces new primaries, and the current primary.

    Raises:
        BackendError: no sentinel knows, or none answers.
    """
    handshake, primary = _open_sentinel(config, listen=True)
    handshake.sock.settimeout(0)
    return handshake, primary


def primary_command(endpoint: Endpoint) -> list[Any]:
    """Return the command that asks a sentinel where the primary is."""
    return ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", endpoint.service]


def parse_primary(reply: Any) -> Address | None:
    """Return the address in the reply to `primary_command`; None if the sentinel doesn't know."""
    return (reply[0].decode(), int(reply[1])) if isinstance(reply, list) else None


def _open_sentinel(config: RedisConfig, *, listen: bool) -> tuple[Handshake, Address]:
    """Return a connection to the first sentinel that knows the primary, and the primary."""
    endpoint = config.endpoint
    # Asked after subscribing, since the primary may change in between.
    questions = [["SUBSCRIBE", SWITCH_MASTER]] * listen + [primary_command(endpoint)]
    last: Exception | None = None
    for address in endpoint.addresses:
        primary = handshake = None
        try:
            handshake = greet(config, address, questions, is_sentinel=True)
            replies = [handshake.reply() for _ in questions]
            last = next((reply for reply in replies if isinstance(reply, hiredis.ReplyError)), None)
            primary = None if last else parse_primary(replies[-1])
        except (OSError, hiredis.ReplyError) as error:  # includes BackendError
            last = error
        finally:
            if handshake is not None and primary is None:
                handshake.sock.close()
        if handshake is not None and primary is not None:
            return handshake, primary
    raise _diagnosis.Unreachable(
        f"{endpoint} is known to no sentinel that answers; check their addresses and its name"
        + (f" ({_diagnosis.said_by(endpoint, last)})" if last else "")
    )
