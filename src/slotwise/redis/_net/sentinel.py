"""Ask Redis Sentinels where the primary of a service is.

A connection can also be subscribed to changes of it. One connection, opened by redis-py, and one
round trip are enough. redis-py's own discovery takes a connection pool per sentinel and several
round trips, and can't subscribe.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hiredis import ReplyError

from slotwise.redis import _diagnosis
from slotwise.redis._config import RedisConfig
from slotwise.redis._endpoint import Address, Endpoint
from slotwise.redis._net.handshake import Handshake
from slotwise.redis._net.opening import Credentials, get_credentials, open_socket

# With sentinels, a reply that took longer than this isn't trusted until they have confirmed that
# the server is still the primary. They take longer than this to replace it.
LATE = 0.5

SWITCH_MASTER = "+switch-master"  # the channel on which sentinels announce new primaries


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
    options = endpoint.sentinel_options
    last: Exception | None = None
    for address in endpoint.addresses:
        handshake = None
        try:
            credentials = get_credentials(endpoint, options)
            deadline = time.monotonic() + config.connect_timeout
            sock = open_socket(endpoint, options, address, config.connect_timeout)
            is_secret = credentials is not None
            handshake = Handshake(sock, deadline, endpoint, address, is_secret=is_secret)
            commands = _greeting(credentials, listen=listen)
            # Asked after subscribing, since the primary may change in between.
            handshake.send([*commands, primary_command(endpoint)])
            replies = [handshake.reply() for _ in commands]
            refusals = [reply for reply in replies if isinstance(reply, ReplyError)]
            reply = handshake.reply()
            try:
                primary = parse_primary(reply)
            except (LookupError, AttributeError, TypeError, ValueError):
                raise handshake.misunderstood() from None
            # An unwanted password matters only on a connection that listens.
            if primary is not None and not (listen and refusals):
                return handshake, primary
            errors = [*refusals, *([reply] if isinstance(reply, ReplyError) else [])]
            last = errors[0] if errors else None
        except OSError as error:  # includes BackendError
            last = error
        if handshake is not None:
            handshake.sock.close()
    raise _diagnosis.Unreachable(
        f"{endpoint} is known to no sentinel that answers; check their addresses and its name"
        + (f" ({_diagnosis.said_by(endpoint, last)})" if last else "")
    )


def _greeting(credentials: Credentials | None, *, listen: bool) -> list[Sequence[Any]]:
    """Return the first commands: RESP3 if we listen, which allows commands beside subscriptions."""
    if listen:
        auth = ["AUTH", *credentials] if credentials else []
        return [["HELLO", "3", *auth], ["SUBSCRIBE", SWITCH_MASTER]]
    if credentials is None:
        return []
    user, password = credentials
    return [["AUTH", password] if user == "default" else ["AUTH", user, password]]
