"""Collect the statistics of the semaphores of a server, found by SCAN and counted in batches."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slotwise._core.results import SemaphoreStats
from slotwise.errors import BackendError
from slotwise.redis._diagnosis import Refused, Unusable
from slotwise.redis._keys import Keys
from slotwise.redis._reply_limits import INSPECT, reply_within
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._call_limits import CallLimits
    from slotwise.redis._config import RedisConfig
    from slotwise.redis._endpoint import Address
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import SharedClient

_MOST_AT_ONCE = 500  # keys looked at in one step of SCAN, and semaphores counted in one write
_WITH_REASON = 2  # what semaphore/inspect.lua says of one that is closed for a reason
_INTERVAL = 15  # what foreign waiters are given if this look grants them something


async def collect(
    shared: SharedClient, config: RedisConfig, names: Iterable[str] | None, limit: int
) -> tuple[dict[str, SemaphoreStats], list[BackendError]]:
    """Statistics by name, fullest first, and what is wrong with those that can't be read."""
    troubles: list[BackendError] = []
    if names is None:
        wanted, unnamed = await _scan(shared, config)
        troubles += [
            Refused(f"{shared.endpoint} has a semaphore whose name is not text: {key!r}")
            for key in unnamed
        ]
    else:
        wanted = list(dict.fromkeys(names))
    shown: list[tuple[str, SemaphoreStats]] = []
    client, on_cluster = shared.client(), bool(shared.cluster)
    for at in range(0, len(wanted), _MOST_AT_ONCE):
        replies = []
        for name in wanted[at : at + _MOST_AT_ONCE]:
            keys = Keys(config.namespace, name, cluster=on_cluster)
            args = [b"", b"counts", keys.notification, _INTERVAL, b""]
            script = load("semaphore/inspect")
            reply = client.run(script, keys.all, args, keys.slot, config.limits)
            replies.append(reply_within(INSPECT, reply, client, keys.slot))
        found = await asyncio.gather(*replies, return_exceptions=True)
        for name, outcome in zip(wanted[at : at + _MOST_AT_ONCE], found, strict=True):
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, Refused) or isinstance(outcome, Unusable):
                    raise outcome
                troubles.append(Refused(f"{name!r} can't be read: {outcome}"))  # the others can
                continue
            value, held, waiting, closed, *_ = outcome
            if value and (names is not None or held or waiting or closed):
                shown.append((name, read_stats(outcome, value)))
    shown.sort(key=lambda item: (-item[1].acquired_percent, -item[1].waiting, item[0]))
    return dict(shown[:limit]), troubles


def read_stats(reply: list[Any], value: int) -> SemaphoreStats:
    """What semaphore/inspect.lua replies; ``value`` is for one that the server knows none of."""
    known_value, held, waiting, closed, reason, *_ = reply
    why = reason.decode(errors="backslashreplace") if closed == _WITH_REASON else None
    return SemaphoreStats(held, known_value or value, waiting, bool(closed), why)


async def _scan(shared: SharedClient, config: RedisConfig) -> tuple[list[str], list[bytes]]:
    """The names of all semaphores that are held, waited for, or closed; and those not in UTF-8."""
    client = shared.client()
    names: dict[str, None] = {}
    unnamed: dict[bytes, None] = {}
    kinds = (("main", "zset"), ("waiting", "zset"), ("state", "hash"))
    scans = [
        _scan_one(shared, config, kind, its_type, address)
        for address in await client.primaries()
        for kind, its_type in kinds
    ]
    # All at once: each takes as many replies as the whole key space has pages.
    for written in itertools.chain(*await asyncio.gather(*scans)):
        try:
            names[written.decode()] = None
        except UnicodeDecodeError:
            unnamed[written] = None
    return list(names), list(unnamed)


async def _scan_one(
    shared: SharedClient, config: RedisConfig, kind: str, its_type: str, address: Address | None
) -> list[bytes]:
    """The names in the keys of one kind on one node."""
    client = shared.client()
    prefix = f"{config.namespace}:semaphore_{kind}:"
    pattern = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in prefix) + "*"
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, keys = await client.command(
            *("SCAN", cursor, "MATCH", pattern, "COUNT", _MOST_AT_ONCE, "TYPE", its_type),
            address=address,
            limits=config.limits,
        )
        if kind == "state":  # those of idle semaphores stay for a while
            keys = await _closed_of(client, keys, address, config.limits)
        for key in keys:
            written = key.removeprefix(prefix.encode())
            found.append(written[1:-1] if shared.cluster is not None else written)
        if cursor == b"0":
            return found


async def _closed_of(
    client: LoopClient, keys: list[bytes], address: Address | None, limits: CallLimits
) -> list[bytes]:
    """Those of the states that say that the semaphore is closed."""
    asked = (
        client.command("HEXISTS", key, ".closed", address=address, limits=limits) for key in keys
    )
    # One that moved to another node meanwhile is asked for there.
    replies = await asyncio.gather(*asked, return_exceptions=True)
    return [key for key, reply in zip(keys, replies, strict=True) if reply == 1]
