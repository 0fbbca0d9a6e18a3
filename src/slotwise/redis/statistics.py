"""How full the semaphores of a server are: found by SCAN, counted in one pipeline at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slotwise.redis._reply_limits import LOOK, reply_within
from slotwise.redis.keys import Keys
from slotwise.redis.scripts import load
from slotwise.redis.weather import Refused, logger
from slotwise.values import SemaphoreStats

if TYPE_CHECKING:
    from slotwise.redis.process import Process

_AT_ONCE = 500  # keys looked at in one step of SCAN, and semaphores counted in one write
_INTERVAL = 15  # what foreign waiters are given if this look grants them something


async def collect(
    process: Process, names: Iterable[str] | None, limit: int
) -> dict[str, SemaphoreStats]:
    """Statistics by name, fullest first."""
    wanted = await _scan(process) if names is None else list(dict.fromkeys(names))
    shown: list[tuple[str, SemaphoreStats]] = []
    seat, namespace, on_cluster = process.seat(), process.config.namespace, bool(process.cluster)
    for at in range(0, len(wanted), _AT_ONCE):
        replies = []
        for name in wanted[at : at + _AT_ONCE]:
            keys = Keys(namespace, name, cluster=on_cluster)
            args = [b"", b"counts", keys.notification, _INTERVAL]
            reply = seat.run(load("look"), keys.all, args, keys.slot)
            replies.append(reply_within(LOOK, reply, seat, keys.slot))
        found = await asyncio.gather(*replies, return_exceptions=True)
        for name, outcome in zip(wanted[at : at + _AT_ONCE], found, strict=True):
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, Refused):
                    raise outcome
                logger.warning("%r can't be counted: %s", name, outcome)  # and the others can
                continue
            value, held, waiting, _ = outcome
            known = value and (names is not None or held or waiting)
            if known:
                shown.append((name, SemaphoreStats(held, value, waiting)))
    shown.sort(key=lambda item: (-item[1].acquired_percent, -item[1].waiting, item[0]))
    return dict(shown[:limit])


async def _scan(process: Process) -> list[str]:
    """The names of all semaphores that are held or waited for."""
    seat = process.seat()
    names: dict[str, None] = {}
    for kind in ("main", "waiting"):
        prefix = f"{process.config.namespace}:semaphore_{kind}:"
        pattern = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in prefix) + "*"
        for address in await seat.primaries():
            cursor = b"0"
            while True:
                cursor, keys = await seat.command(
                    *("SCAN", cursor, "MATCH", pattern, "COUNT", _AT_ONCE, "TYPE", "zset"),
                    address=address,
                )
                for key in keys:
                    name = key.decode().removeprefix(prefix)
                    names[name[1:-1] if process.cluster is not None else name] = None
                if cursor == b"0":
                    break
    return list(names)
